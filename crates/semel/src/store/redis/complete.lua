-- Completes many records as rules.lua does, for owners whose leases are valid, which nearly all are.
-- Answers 1 for each of these, and 0 for a record that rules.lua must decide.
-- KEYS: the records. ARGV: for each of them owner and fence, outcome, retention or nothing.
local call, sub, byte, pack, unpack = redis.call, string.sub, string.byte, struct.pack, struct.unpack
local min, max, ceil = math.min, math.max, math.ceil
local CLAIMED, BEGUN, DONE = 2, 3, 4
local FOREVER, STUB = 9007199254740992, 3600000000

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local answers = {}
for i, key in ipairs(KEYS) do
  -- Read one by one: two completions may be for the same record.
  local value, mine, outcome, asked = call('GET', key), ARGV[3 * i - 2], ARGV[3 * i - 1], ARGV[3 * i]
  answers[i] = 0
  if value and #value >= 148 and sub(value, 37, 60) == mine then
    local version, state, _, hint = byte(value, 1, 4)
    local lease_until, _, _, lease, in_flight_max, retention, grace, memory = unpack('<I8I8I8I8I8I8I8I8', value, 85)
    if version == 1 and (state == CLAIMED or state == BEGUN) and now < lease_until and #value >= 148 + hint then
      local expires = min(now + min((tonumber(asked) or retention) + grace, FOREVER), FOREVER)
      local forget = min(expires + memory, FOREVER)
      local record = pack('<BBc74I8I8I8I8c0c0', 1, DONE, sub(value, 3, 76), now, now, expires, forget,
        sub(value, 109, 148 + hint), outcome)
      local gone = max(forget, now + in_flight_max + lease, now + STUB)
      call('SET', key, record, 'PXAT', ceil(gone / 1000))
      call('PUBLISH', key, '')
      answers[i] = 1
    end
  end
end
return answers
