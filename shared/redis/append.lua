-- Appends events to a run's log and publishes them, for the log's owner only.
--
-- KEYS[1]  run:{id}:events  stream   "0-1": the log's mark, see open.lua; then entry id "<seq>-0", field "e"; appended
--                                    to, expiry refreshed
-- KEYS[2]  run:{id}:fence   string   "<fence> <owner>"; checked, expiry refreshed; set when restoring
-- ARGV[1]  the caller's "<fence> <owner>"
-- ARGV[2]  the id of the log that the caller opened
-- ARGV[3]  seq of the first event
-- ARGV[4]  lifetime of both keys, ms
-- ARGV[5]  run:{id}:feed    channel  "<first seq> <entry>\n<entry>…", published
-- ARGV[6]  "restore" a log that Redis lost, "begin" one whose earlier events are all in SQL, or "go on"
-- ARGV[7…] the events' bytes
--
-- Returns {"ok", last seq}
--         {"lost", 0}       the log belongs to somebody else
--         {"behind", last}  the log is shorter than the caller thinks, or not the caller's; nothing was written
--
-- Entries that the caller has written before are skipped: a repeated append is a success. A stream without entries can
-- begin with any seq. Restoring claims a log that Redis forgot, drops what a stranger may have written in the meantime,
-- and takes any first seq after the last; the log's id is who restored it from then on.

local FIRST_ENTRY = 7
local MARK = '0-1'
local restoring = ARGV[6] == 'restore'

local function fence_of(holder)
  return tonumber(string.match(holder, '^%d+'))
end

local held = redis.call('GET', KEYS[2])
if held and held ~= ARGV[1] and fence_of(held) >= fence_of(ARGV[1]) then
  return {'lost', 0}
end
local mark = redis.call('XRANGE', KEYS[1], MARK, MARK)[1]
local is_ours = held == ARGV[1] and mark and (mark[2][2] == ARGV[2] or mark[2][2] == ARGV[1])
if not is_ours then
  if not restoring then
    return {'behind', 0}
  end
  redis.call('SET', KEYS[2], ARGV[1])
  redis.call('DEL', KEYS[1])
  redis.call('XADD', KEYS[1], MARK, 'log', ARGV[1])
end

local first = tonumber(ARGV[3])
local newest = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
local last = tonumber(string.match(newest[1], '^%d+'))
if first > last + 1 and not restoring and (last > 0 or ARGV[6] ~= 'begin') then
  return {'behind', last}
end

local known = last > 0 and math.max(0, last + 1 - first) or 0
for position = FIRST_ENTRY + known, #ARGV do
  last = first + position - FIRST_ENTRY
  redis.call('XADD', KEYS[1], string.format('%d-0', last), 'e', ARGV[position])
end
redis.call('PEXPIRE', KEYS[1], ARGV[4])
redis.call('PEXPIRE', KEYS[2], ARGV[4])
if FIRST_ENTRY + known <= #ARGV then
  local news = table.concat(ARGV, '\n', FIRST_ENTRY + known)
  redis.call('PUBLISH', ARGV[5], string.format('%d ', first + known) .. news)
end
return {'ok', last}
