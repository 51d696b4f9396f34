-- The rules of crates/semel/src/record.rs for Redis: read that file first, the order here is the same.
-- KEYS[1] is the record, one packed value in the layout of record/codec.rs; it is also the name of the channel that
-- wakes its waiters. ARGV[1] is the command, the rest are its parts, packed the same way.
-- Numbers are doubles: microseconds since 1970 are exact until the year 2255, the maximum time of this file.
local byte, char, sub, max, min = string.byte, string.char, string.sub, math.max, math.min
local pack, unpack = struct.pack, struct.unpack

local VACANT, BOUND, CLAIMED, BEGUN, DONE, EXPIRED = 0, 1, 2, 3, 4, 5
local KEYED, MARKED = 1, 2
local FOREVER = 9007199254740992
-- A stub lives at least an hour, so that a smaller clock step or failover cannot make a fence go back.
local STUB = 3600000000

local key, command = KEYS[1], ARGV[1]
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local value = redis.call('GET', key)

local function after(moment, by) return min(moment + by, FOREVER) end

-- The current record. A swept record reads as nothing, and its fence is the floor of the next one.
local state, mode, hint_end
local fence, epoch, attempt = 0, 0, 0
local claimed_at, changed_at, lease_until, expires_at, forget_at
local lease, in_flight_max, retention, grace, memory
local phase, swept = 'vacant', false
if value then
  local version, hint
  version, state, mode, hint = byte(value, 1, 4)
  if version ~= 1 then return redis.error_reply('SEMELVERSION ' .. tostring(version)) end
  if #value < 148 + hint then return redis.error_reply('SEMELDAMAGED the record is too short') end
  hint_end = 148 + hint
  fence, epoch, attempt, claimed_at, changed_at, lease_until, expires_at, forget_at,
    lease, in_flight_max, retention, grace, memory = unpack('<I8I4I4I8I8I8I8I8I8I8I8I8I8', value, 53)
  if state == VACANT then phase = 'vacant'
  elseif state == BOUND then phase = now < expires_at and 'bound' or 'vacant'
  elseif state == CLAIMED and now < lease_until then phase = 'claimed'
  elseif state == BEGUN and now < lease_until then phase = 'begun'
  elseif state == BEGUN and mode == MARKED then phase = 'in_doubt'
  elseif state ~= DONE and state ~= EXPIRED and now < expires_at then phase = 'lapsed'
  elseif state == DONE and now < expires_at then phase = 'done'
  else phase = now < forget_at and 'expired' or 'vacant'
  end
  swept = state == VACANT and lease_until == 0
end
local known = value and not swept
local held = phase == 'claimed' or phase == 'begun'
local standing = held or phase == 'lapsed' or phase == 'in_doubt'
local mine = known and sub(value, 37, 60) == ARGV[2]

local function next_fence() return max(fence + 1, now) end

-- Puts the record into a state without an owner, and wakes the waiters.
local function rest(into, stands, remembered, outcome)
  local expires = after(now, stands)
  local forget = after(expires, remembered)
  local record = char(1, into) .. sub(value, 3, 52)
    .. pack('<I8I4I4I8I8I8I8I8', fence, epoch, attempt, claimed_at, now, now, expires, forget)
    .. sub(value, 109, hint_end) .. outcome
  local gone = max(forget, now + in_flight_max + lease, now + STUB)
  redis.call('SET', key, record, 'PXAT', math.ceil(gone / 1000))
  redis.call('PUBLISH', key, '')
  return { 'accepted', 0 }
end
local function finish(outcome, stands) return rest(DONE, after(stands, grace), memory, outcome) end
local function bind() return rest(BOUND, retention, 0, '') end
local function vacate() return rest(VACANT, 0, 0, '') end

if command == 'claim' then
  -- ARGV[2]: the new record, without fence, counts and times.
  local asked = ARGV[2]
  local same_owner = known and sub(asked, 37, 52) == sub(value, 37, 52)
  if phase ~= 'vacant' and phase ~= 'expired' and sub(asked, 5, 36) ~= sub(value, 5, 36) then
    return { 'conflict' }
  end
  if held and same_owner then
    -- Written even if it is the same: a repeated call may have to wait until the replicas have it.
    redis.call('SETRANGE', key, 1, char(max(state, byte(asked, 2))))
    return { 'won', fence, attempt, epoch, lease_until - now }
  end
  if held then return { 'busy', lease_until - now } end
  if phase == 'in_doubt' or phase == 'expired' then return { phase } end
  if phase == 'done' then return { 'replay', expires_at - now, value } end
  if same_owner and phase ~= 'lapsed' then return { 'lost' } end

  if not known then epoch = 0 end
  if phase == 'vacant' then attempt = 0 end
  fence, attempt = next_fence(), min(attempt + 1, 4294967295)
  lease, in_flight_max, retention, grace, memory = unpack('<I8I8I8I8I8', asked, 109)
  lease_until = after(now, min(lease, in_flight_max))
  expires_at = after(now, max(retention, in_flight_max + lease))
  forget_at = after(expires_at, memory)
  redis.call('SET', key, sub(asked, 1, 52)
    .. pack('<I8I4I4I8I8I8I8I8', fence, epoch, attempt, now, now, lease_until, expires_at, forget_at)
    .. sub(asked, 109))
  return { 'won', fence, attempt, epoch, lease_until - now }
end

-- ARGV[2] of the owner's writes: owner and fence.
if command == 'begin' or command == 'renew' then
  if not (mine and held) then return { 'lost' } end
  if command == 'begin' then
    redis.call('SETRANGE', key, 1, char(BEGUN))
  else
    local limit = after(claimed_at, in_flight_max)
    lease_until = max(lease_until, min(after(now, lease), limit))
    redis.call('SETRANGE', key, 84, pack('<I8', lease_until))
  end
  return { 'accepted', lease_until - now }
end

if command == 'complete' then
  -- ARGV[3] fingerprint, ARGV[4] outcome, ARGV[5] retention or nothing.
  if mine and standing then return finish(ARGV[4], tonumber(ARGV[5]) or retention) end
  if phase ~= 'done' then return { 'lost' } end
  if mine and sub(value, hint_end + 1) == ARGV[4] then
    redis.call('SETRANGE', key, 1, char(DONE))
    return { 'accepted', 0 }
  end
  if sub(value, 5, 36) == ARGV[3] then return { 'lost', value } end
  return { 'lost' }
end

if command == 'release' or command == 'bind' or command == 'abandon' then
  if not (mine and standing) then return { 'lost' } end
  if command == 'abandon' then
    redis.call('SETRANGE', key, 84, pack('<I8', min(lease_until, now)))
    redis.call('PUBLISH', key, '')
    return { 'accepted', 0 }
  end
  if command == 'bind' or mode == KEYED then return bind() end
  return vacate()
end

-- ARGV[3] of settle and force_forget, where it is given: the fence of the attempt that was looked at.
local function is_other_attempt() return ARGV[3] and sub(value, 53, 60) ~= ARGV[3] end

if command == 'settle_done' or command == 'settle_run' then
  if phase ~= 'in_doubt' then return { 'refused', phase } end
  if is_other_attempt() then return { 'lost' } end
  fence = next_fence()
  if command == 'settle_done' then return finish(ARGV[2], retention) end
  return bind()
end

if command == 'forget' or command == 'force_forget' then
  if not known then return { 'refused', 'vacant' } end
  if standing and command == 'forget' then return { 'refused', phase } end
  if is_other_attempt() then return { 'lost' } end
  return vacate()
end

if command == 'reexecute' then
  if phase ~= 'done' and phase ~= 'expired' then return { 'refused', phase } end
  fence, epoch = next_fence(), min(epoch + 1, 4294967295)
  return bind()
end

if command == 'read' then
  if known then return { now, value } end
  return { now }
end

if command == 'sweep' then
  if known and phase == 'vacant' and now >= max(forget_at, changed_at + in_flight_max + lease) then
    if now >= changed_at + STUB then
      redis.call('DEL', key)
    else
      -- Swept: only the fence is valid, for the rest of its hour.
      redis.call('SET', key, char(1, VACANT) .. sub(value, 3, 84) .. pack('<I8', 0) .. sub(value, 93, hint_end),
        'PXAT', math.ceil((changed_at + STUB) / 1000))
    end
    return { 'removed' }
  end
  if state == DONE and (phase == 'expired' or phase == 'vacant') then
    redis.call('SET', key, char(1, EXPIRED) .. sub(value, 3, hint_end), 'KEEPTTL')
    return { 'shrunk' }
  end
  return { 'kept' }
end

return redis.error_reply('SEMELCOMMAND ' .. command)
