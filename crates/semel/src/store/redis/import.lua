-- Writes a record as another store had it, unless the stored one is ahead (is_ahead in store/transfer.rs).
-- KEYS[1] is the record, ARGV[1] its value, ARGV[2] when it expires in milliseconds, or nothing. Answers 1 if it was written.
local byte, unpack = string.byte, struct.unpack
local key, value, expires = KEYS[1], ARGV[1], ARGV[2]

-- Claimed, begun, ended.
local function rank(record)
  local state = byte(record, 2)
  if state == 2 then return 0 end
  if state == 3 then return 1 end
  return 2
end

local stored = redis.call('GET', key)
if stored then
  if byte(stored, 1) ~= 1 then return redis.error_reply('SEMELVERSION ' .. tostring(byte(stored, 1))) end
  if #stored < 148 then return redis.error_reply('SEMELDAMAGED the record is too short') end
  local fence, imported = unpack('<I8', stored, 53), unpack('<I8', value, 53)
  if fence > imported or (fence == imported and rank(stored) > rank(value)) then return 0 end
end
if expires == '' then redis.call('SET', key, value) else redis.call('SET', key, value, 'PXAT', expires) end
return 1
