-- KEYS[1] is a high-water mark, twenty digits; ARGV[2] is its new minimum. Compared as text: digits of one length
-- sort as their numbers do, and Lua's own numbers end at 2^53.
local stands = redis.call('GET', KEYS[1])
if stands and stands >= ARGV[2] then return stands end
redis.call('SET', KEYS[1], ARGV[2])
return ARGV[2]
