-- Appends events to a run's log and publishes them, for the log's owner only.
--
-- KEYS[1]  run:{id}:events  stream   entry id "<seq>-0", field "e"; appended to, expiry refreshed
-- KEYS[2]  run:{id}:fence   string   "<fence> <owner>"; checked, expiry refreshed
-- ARGV[1]  the caller's "<fence> <owner>"
-- ARGV[2]  seq of the first event
-- ARGV[3]  seq that the stream must reach, or readers would find a gap; 0: SQL has all events before the first one
-- ARGV[4]  lifetime of both keys, ms
-- ARGV[5]  PUBLISH, or on a Redis Cluster SPUBLISH
-- ARGV[6]  run:{id}:feed    channel  "<first seq> <entry>\n<entry>…", published
-- ARGV[7…] the events' bytes
--
-- Returns {"ok", last seq}
--         {"taken", 0}      another owner has the log
--         {"lost", last}    Redis has lost data: the fence is missing, or the stream ends too early; nothing was
--                           written
--
-- Entries that the caller has written before are skipped: a repeated append is a success.

local FIRST_ENTRY = 7

local function fence_of(holder)
  return tonumber(string.match(holder, '^%d+'))
end

local holder = redis.call('GET', KEYS[2])
if holder and holder ~= ARGV[1] and fence_of(holder) >= fence_of(ARGV[1]) then
  return {'taken', 0}
end
local newest = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
local last = newest and tonumber(string.match(newest[1], '^%d+')) or 0
if holder ~= ARGV[1] or last < tonumber(ARGV[3]) then
  return {'lost', last}
end

local first = tonumber(ARGV[2])
local known = math.max(0, last + 1 - first)
for position = FIRST_ENTRY + known, #ARGV do
  last = first + position - FIRST_ENTRY
  redis.call('XADD', KEYS[1], string.format('%d-0', last), 'e', ARGV[position])
end
redis.call('PEXPIRE', KEYS[1], ARGV[4])
redis.call('PEXPIRE', KEYS[2], ARGV[4])
if FIRST_ENTRY + known <= #ARGV then
  local news = table.concat(ARGV, '\n', FIRST_ENTRY + known)
  redis.call(ARGV[5], ARGV[6], string.format('%d ', first + known) .. news)
end
return {'ok', last}
