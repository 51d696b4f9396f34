//! The scripts of the buffer.
//!
//! `about` of a run is `state|token|attempts|version|key|print|expires`, where state is `q` or `l`, and the key is
//! `id` or `id@generation`; it contains only ids, numbers and hex, so the bars separate.
//!
//! Redis does not roll a script back. A script therefore refuses before its first write, and writes what protects a run
//! before it removes the run. A command gets a bounded number of arguments, because Lua passes at most about 8,000.

use semel::store::RedisScript;

/// The beginning of all scripts.
const COMMON: &str = "
local QUEUE, LEASED, RUNS, ABOUT, CHANGES, KEYS_ = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local LISTED, REFUSED = KEYS[7], KEYS[8]
local time = redis.call('TIME')
local now, micros = time[1] * 1000 + math.floor(time[2] / 1000), time[1] * 1000000 + time[2]
-- How long after its ledger was read a run can be put, in microseconds.
local AGE = 10000000
-- Redis refuses the first write of a script if its memory is full. It refuses neither a removal nor the writes after one.
-- A script that starts with this drains the buffer, or keeps a key from getting two runs, also with a full memory.
local function write_when_full() redis.call('HDEL', LISTED, '') end
local function read(id)
  local text = redis.call('HGET', ABOUT, id)
  if not text then return nil end
  local s, t, a, v, k, p, e = string.match(text, '^(%l)|(%x*)|(%d+)|(%d+)|([%x@]*)|(%x*)|(%-?%d+)$')
  if not s then return nil end
  return { s = s, t = t, a = tonumber(a), v = tonumber(v), k = k, p = p, e = tonumber(e) }
end
local function write(id, r)
  redis.call('HSET', ABOUT, id, string.format('%s|%s|%d|%d|%s|%s|%.0f', r.s, r.t, r.a, r.v, r.k, r.p, r.e))
end
local function free(r, id)
  if r.k ~= '' and redis.call('HGET', KEYS_, r.k) == id then redis.call('HDEL', KEYS_, r.k) end
end
local function drop(id, r)
  if r then free(r, id) end
  redis.call('ZREM', QUEUE, id)
  redis.call('ZREM', LEASED, id)
  redis.call('HDEL', RUNS, id)
  redis.call('HDEL', ABOUT, id)
  redis.call('HDEL', CHANGES, id)
end
-- Refuses puts of these keys whose ledger was read before a time. The list has that time before each key.
local function refuse(list, keep, option)
  if #list == 0 then return end
  for from = 1, #list, 1000 do
    redis.call('ZADD', REFUSED, option, unpack(list, from, math.min(from + 999, #list)))
  end
  redis.call('ZREMRANGEBYSCORE', REFUSED, '-inf', string.format('%.0f', micros - AGE))
  if redis.call('PTTL', REFUSED) < keep then redis.call('PEXPIRE', REFUSED, string.format('%.0f', keep)) end
end
local function refuse_until_now(keys, option)
  local list = {}
  for i, key in ipairs(keys) do
    list[2 * i - 1], list[2 * i] = string.format('%.0f', micros), key
  end
  refuse(list, AGE / 1000, option)
end
-- Leases a run, and answers all that a drainer needs of it.
local function lease_run(id, r, token, lease)
  r.s, r.t = 'l', token
  write(id, r)
  redis.call('ZREM', QUEUE, id)
  redis.call('ZADD', LEASED, now + lease, id)
  return redis.call('HGET', RUNS, id) or '', redis.call('HGET', CHANGES, id) or '', tostring(r.a), tostring(r.v),
    string.format('%.0f', r.e)
end
-- The run that holds a key, and whether the key has expired. A key whose run is gone is free.
local function holder(key)
  local id = redis.call('HGET', KEYS_, key)
  if not id then return nil end
  local r = read(id)
  if r and r.k == key then return id, r, r.e >= 0 and r.e <= now end
  redis.call('HDEL', KEYS_, key)
  return nil
end
";

/// Puts many runs with few commands: each command costs the server as much as a run's share of the work. Answers
/// the time, and for each run 1 if it is new, and otherwise a word and the run that has the key.
///
/// A run that is already in the buffer under its own id is new: its caller did not get the answer to an earlier put.
///
/// If no drainer would find the runs that it stores, nothing is written and a token is returned: the caller announces the
/// tenant and repeats the put with the token.
///
/// The list may lose a tenant whose runs remain, because it is in another slot of a cluster. So a tenant that was announced a
/// minute ago is announced again, also by a put that stores nothing.
const PUT: &str = "
local OPEN = 60000000
local capacity, size = tonumber(ARGV[1]), redis.call('HLEN', ABOUT)
local ids, keys = {}, {}
for i = 3, #ARGV, 6 do
  ids[#ids + 1], keys[#keys + 1] = ARGV[i], ARGV[i + 2]
end
local known, held = redis.call('HMGET', ABOUT, unpack(ids)), redis.call('HMGET', KEYS_, unpack(keys))
local refused = redis.call('ZMSCORE', REFUSED, unpack(keys))
-- Those of this call: by id, and by key with the fingerprint.
local new, named = {}, {}
local runs, abouts, names, queued, answers = {}, {}, {}, {}, { string.format('%.0f', micros) }
local function put(at, id, run, key, print, life, read_at)
  if new[id] then return 1 end
  if known[at] and read(id) then
    -- Written again, so that a wait for replicas covers it on a new connection too.
    runs[#runs + 1], runs[#runs + 2] = id, run
    return 1
  end
  if key ~= '' then
    local other, its, expired = nil, nil, false
    if named[key] then
      other, its = named[key][1], named[key][2]
    elseif held[at] then
      local r
      other, r, expired = holder(key)
      its = r and r.p
    end
    if other then
      if expired then return { 'expired', '' } end
      if its == print then return { 'cached', other } end
      return { 'conflict', '' }
    end
    -- Whatever happened to the key since its ledger was read is in the list, or the read is too old for the list.
    local till = tonumber(refused[at] or 0)
    if till > micros then return { 'reserved', '' } end
    -- A read in the future: the clock was set back, and its notes may be lower than they should be.
    if read_at <= till or read_at < micros - AGE or read_at > micros then return { 'late', '' } end
  end
  if size >= capacity then return { 'full', '' } end
  size = size + 1
  new[id] = true
  runs[#runs + 1], runs[#runs + 2] = id, run
  local ends = life < 0 and '-1' or string.format('%.0f', now + life)
  abouts[#abouts + 1], abouts[#abouts + 2] = id, 'q||0|0|' .. key .. '|' .. print .. '|' .. ends
  if key ~= '' then
    named[key] = { id, print }
    names[#names + 1], names[#names + 2] = key, id
  end
  queued[#queued + 1], queued[#queued + 2] = now, id
  return 1
end
for at = 1, #ids do
  local i = at * 6 - 3
  local life, read_at = tonumber(ARGV[i + 4]), tonumber(ARGV[i + 5])
  answers[at + 1] = put(at, ids[at], ARGV[i + 1], keys[at], ARGV[i + 3], life, read_at)
end
-- A tenant that a put without a run opened would be empty, and closed by the next drainer.
if size == 0 then return answers end
local list = redis.call('HMGET', LISTED, 'open', 'token')
local opened = tonumber(list[1] or 0)
if opened > micros or opened < micros - OPEN then
  if ARGV[2] == '' or list[2] ~= ARGV[2] then
    local token = list[2] or string.format('%.0f', micros)
    redis.call('HSET', LISTED, 'token', token)
    return token
  end
  redis.call('HSET', LISTED, 'open', string.format('%.0f', micros))
  redis.call('HDEL', LISTED, 'token')
end
if #runs == 0 then return answers end
redis.call('HSET', RUNS, unpack(runs))
if #abouts > 0 then
  redis.call('HSET', ABOUT, unpack(abouts))
  redis.call('ZADD', QUEUE, unpack(queued))
end
if #names > 0 then redis.call('HSET', KEYS_, unpack(names)) end
return answers";

/// Records the tenants of runs.
const RECORD: &str = "
redis.call('HSET', KEYS[1], unpack(ARGV))
return 1";

const FIND: &str = "
local id, r, expired = holder(ARGV[1])
if not id then return { '', '', '' } end
return { id, r.p, expired and '1' or '0' }";

/// As `FIND`. If the key is free, no run can be put under it for a while: the caller writes one to the ledger.
const RESERVE: &str = "
local key, keep = ARGV[1], tonumber(ARGV[2])
local id, r, expired = holder(key)
if id then return { id, r.p, expired and '1' or '0' } end
write_when_full()
refuse({ string.format('%.0f', micros + keep * 1000), key }, keep, 'GT')
return { '', '', '' }";

/// The ledger has changed: a put that read it before must read it again. `GT` keeps a reservation; `CH`, which changes
/// nothing but the answer of Redis, ends it.
const OUTDATE: &str = "
write_when_full()
refuse_until_now({ ARGV[1] }, ARGV[2])
return 1";

const GET: &str = "
local r = read(ARGV[1])
local run = redis.call('HGET', RUNS, ARGV[1])
if not r or not run then return false end
return { run, redis.call('HGET', CHANGES, ARGV[1]) or '', tostring(r.v), string.format('%.0f', r.e) }";

const PATCH: &str = "
local id, patch, version = ARGV[1], ARGV[2], tonumber(ARGV[3])
local r = read(id)
if not r then return { 'missing', '' } end
if version >= 0 and version ~= r.v then return { 'stale', '' } end
local before = redis.call('HGET', CHANGES, id) or ''
redis.call('HSET', CHANGES, id, before .. patch)
r.v = r.v + 1
write(id, r)
return { 'applied', tostring(r.v) }";

/// A tenant without runs is closed: a later put needs a new announcement. Not within five seconds of a refused put:
/// its producer announces the tenant and returns, and idle drainers would undo every announcement before that.
const LEASE: &str = "
local limit, lease, token = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3]
write_when_full()
local over = redis.call('ZRANGEBYSCORE', LEASED, '-inf', now, 'LIMIT', 0, 1000)
for _, id in ipairs(over) do
  redis.call('ZREM', LEASED, id)
  local r = read(id)
  if r then
    r.s, r.t, r.a = 'q', '', r.a + 1
    write(id, r)
    redis.call('ZADD', QUEUE, now, id)
  end
end
local answer = { #over, 0 }
for _, id in ipairs(redis.call('ZRANGEBYSCORE', QUEUE, '-inf', now, 'LIMIT', 0, limit)) do
  local r = read(id) or { s = 'q', t = '', a = 0, v = 0, k = '', p = '', e = -1 }
  local n = #answer
  answer[n + 1] = id
  answer[n + 2], answer[n + 3], answer[n + 4], answer[n + 5], answer[n + 6] = lease_run(id, r, token, lease)
end
answer[2] = redis.call('ZCARD', QUEUE) + redis.call('ZCARD', LEASED)
if answer[2] == 0 then
  local given = tonumber(redis.call('HGET', LISTED, 'token') or 0)
  if time[1] * 1000000 + time[2] - given < 5000000 then
    answer[2] = 1
  else
    redis.call('DEL', LISTED)
  end
end
return answer";

/// Leases one run, even before it is due, but not one that a drainer has leased.
const LEASE_ONE: &str = "
local id, lease, token = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local r = read(id)
if not r then return { 'missing' } end
if r.s == 'l' then
  if tonumber(redis.call('ZSCORE', LEASED, id) or 0) > now then return { 'held' } end
  r.a = r.a + 1
end
write_when_full()
local run, changes, attempts, version, expires = lease_run(id, r, token, lease)
return { 'leased', run, changes, attempts, version, expires }";

const RENEW: &str = "
local token, lease, held = ARGV[1], tonumber(ARGV[2]), {}
write_when_full()
for i = 3, #ARGV do
  local r = read(ARGV[i])
  if r and r.s == 'l' and r.t == token then
    redis.call('ZADD', LEASED, now + lease, ARGV[i])
    held[#held + 1] = 1
  else
    held[#held + 1] = 0
  end
end
return held";

/// A put of the same key may have read the ledger before the run came there: it is refused. The notes that refuse it are
/// written before the runs leave.
const ACK: &str = "
local token, answers, left, leaving = ARGV[1], {}, {}, {}
write_when_full()
for i = 2, #ARGV, 2 do
  local id, version = ARGV[i], tonumber(ARGV[i + 1])
  local r, answer = read(id), { 'gone', '' }
  if r and (r.s ~= 'l' or r.t ~= token) then
    answer = { 'lost', '' }
  elseif r and r.v ~= version then
    answer = { 'changed', redis.call('HGET', CHANGES, id) or '' }
  elseif r then
    if r.k ~= '' then left[#left + 1] = r.k end
    leaving[id] = r
  end
  answers[#answers + 1] = answer
end
refuse_until_now(left, 'GT')
for id, r in pairs(leaving) do drop(id, r) end
return answers";

const GIVE_BACK: &str = "
local token, id, pause = ARGV[1], ARGV[2], tonumber(ARGV[3])
local r = read(id)
if not r or r.s ~= 'l' or r.t ~= token then return 0 end
write_when_full()
r.s, r.t = 'q', ''
if ARGV[4] == '1' then r.a = r.a + 1 end
write(id, r)
redis.call('ZREM', LEASED, id)
redis.call('ZADD', QUEUE, now + pause, id)
return 1";

const REMOVE: &str = "
local token, id = ARGV[1], ARGV[2]
local r = read(id)
if r and (r.s ~= 'l' or r.t ~= token) then return 0 end
write_when_full()
if r and r.k ~= '' then refuse_until_now({ r.k }, 'GT') end
drop(id, r)
return 1";

const DEPTH: &str = "
local oldest = now
for _, place in ipairs({ QUEUE, LEASED }) do
  local first = redis.call('ZRANGE', place, 0, 0)
  if first[1] then
    -- The first ten characters of an id after its prefix are the time it was made, in ms.
    local made, digits = 0, '0123456789ABCDEFGHJKMNPQRSTVWXYZ'
    for c in string.gmatch(string.sub(first[1], 5, 14), '.') do
      made = made * 32 + (string.find(digits, c, 1, true) or 1) - 1
    end
    if made > 0 and made < oldest then oldest = made end
  end
end
return { redis.call('ZCARD', QUEUE), redis.call('ZCARD', LEASED), now - oldest }";

/// Adds a tenant to the list with a larger number than before. A new tenant waits behind those that had their turn
/// before now. The number is a time, so that none is used twice, even after Redis has lost its data.
const ANNOUNCE: &str = "
local time = redis.call('TIME')
local before = tonumber(redis.call('HGET', KEYS[2], ARGV[1]) or 0)
local last = redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')[2] or 0
redis.call('ZADD', KEYS[1], 'NX', last, ARGV[1])
redis.call('HSET', KEYS[2], ARGV[1], string.format('%.0f', math.max(time[1] * 1000000 + time[2], before + 1)))
return 1";

/// Removes a tenant from the list, unless it was announced since.
const LEAVE: &str = "
if (redis.call('HGET', KEYS[2], ARGV[1]) or '0') ~= ARGV[2] then return 0 end
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('HDEL', KEYS[2], ARGV[1])
return 1";

/// The tenant whose last turn was longest ago gets the next one. Answers its name and the number of its announcement.
const TURN: &str = "
local first = redis.call('ZRANGE', KEYS[1], 0, 0)
if not first[1] then return false end
local last = redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')
-- A removal comes first, so that Redis does not refuse this if its memory is full.
redis.call('ZREM', KEYS[1], first[1])
redis.call('ZADD', KEYS[1], tonumber(last[2]) + 1, first[1])
return { first[1], redis.call('HGET', KEYS[2], first[1]) or '0' }";

pub(super) struct BufferScripts {
    pub(super) put: RedisScript,
    pub(super) record: RedisScript,
    pub(super) find: RedisScript,
    pub(super) reserve: RedisScript,
    pub(super) outdate: RedisScript,
    pub(super) get: RedisScript,
    pub(super) patch: RedisScript,
    pub(super) lease: RedisScript,
    pub(super) lease_one: RedisScript,
    pub(super) renew: RedisScript,
    pub(super) ack: RedisScript,
    pub(super) give_back: RedisScript,
    pub(super) remove: RedisScript,
    pub(super) depth: RedisScript,
    pub(super) announce: RedisScript,
    pub(super) leave: RedisScript,
    pub(super) turn: RedisScript,
}

impl BufferScripts {
    pub(super) fn new() -> Self {
        let script = |text: &str| RedisScript::new(format!("{COMMON}{text}"));
        Self {
            put: script(PUT),
            record: RedisScript::new(RECORD),
            find: script(FIND),
            reserve: script(RESERVE),
            outdate: script(OUTDATE),
            get: script(GET),
            patch: script(PATCH),
            lease: script(LEASE),
            lease_one: script(LEASE_ONE),
            renew: script(RENEW),
            ack: script(ACK),
            give_back: script(GIVE_BACK),
            remove: script(REMOVE),
            depth: script(DEPTH),
            announce: RedisScript::new(ANNOUNCE),
            leave: RedisScript::new(LEAVE),
            turn: RedisScript::new(TURN),
        }
    }
}
