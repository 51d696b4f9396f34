-- KEYS[1] is the state of the store (store/transfer/state.rs). ARGV[1] is the state that it must have, ARGV[2] the next one.
-- Answers 1 if it was changed.
if (redis.call('GET', KEYS[1]) or 'open') ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2])
return 1
