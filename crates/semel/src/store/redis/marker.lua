-- KEYS[1] is the store's marker. Its id is created once and its beat only grows: a server on which either went back
-- has lost data. ARGV[2] is an id to begin with, ARGV[3] says whether a loss was seen.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
redis.call('HSETNX', KEYS[1], 'id', ARGV[2])
if ARGV[3] == 'lost' then redis.call('HSET', KEYS[1], 'lost_at', string.format('%.0f', now)) end
local beat = redis.call('HINCRBY', KEYS[1], 'beat', 1)
return { redis.call('HGET', KEYS[1], 'id'), beat, now, tonumber(redis.call('HGET', KEYS[1], 'lost_at') or 0) }
