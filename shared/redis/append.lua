-- Appends events to a run's log and publishes them, for the log's owner only.
--
-- KEYS[1]  run:{id}:events  stream   entry id "<seq>-0", field "e"; appended to, expiry refreshed
-- KEYS[2]  run:{id}:fence   string   "<fence> <owner>"; checked, expiry refreshed; set when restoring
-- ARGV[1]  the caller's "<fence> <owner>"
-- ARGV[2]  seq of the first event
-- ARGV[3]  lifetime of both keys, ms
-- ARGV[4]  run:{id}:feed    channel  "<first seq> <entry>\n<entry>…", published
-- ARGV[5]  "1" to restore a log that Redis lost, else "0"
-- ARGV[6…] the events' bytes
--
-- Returns {"ok", last seq}
--         {"lost", 0}       the log belongs to somebody else
--         {"behind", last}  the log is shorter than the caller thinks; nothing was written
--
-- Entries that the caller has written before are skipped: a repeated append is a success. An empty stream takes any
-- first seq, because the beginning of a log may be in SQL alone. Restoring claims a fence that Redis forgot, drops what
-- a stranger may have written in the meantime, and takes any first seq after the last.

local FIRST_ENTRY = 6
local restoring = ARGV[5] == '1'

local function fence_of(holder)
  return tonumber(string.match(holder, '^%d+'))
end

local held = redis.call('GET', KEYS[2])
if held ~= ARGV[1] then
  if held and fence_of(held) >= fence_of(ARGV[1]) then
    return {'lost', 0}
  end
  if not restoring then
    return {'behind', 0}
  end
  redis.call('SET', KEYS[2], ARGV[1])
  redis.call('DEL', KEYS[1])
end

local first = tonumber(ARGV[2])
local newest = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
local last = newest and tonumber(string.match(newest[1], '^%d+')) or first - 1
if first > last + 1 and not restoring then
  return {'behind', last}
end

local known = math.max(0, last + 1 - first)
for position = FIRST_ENTRY + known, #ARGV do
  last = first + position - FIRST_ENTRY
  redis.call('XADD', KEYS[1], string.format('%d-0', last), 'e', ARGV[position])
end
redis.call('PEXPIRE', KEYS[1], ARGV[3])
redis.call('PEXPIRE', KEYS[2], ARGV[3])
if FIRST_ENTRY + known <= #ARGV then
  local news = table.concat(ARGV, '\n', FIRST_ENTRY + known)
  redis.call('PUBLISH', ARGV[4], string.format('%d ', first + known) .. news)
end
return {'ok', last}
