-- Makes the caller the owner of a run's log, unless a newer one has it, and begins the log if Redis has none.
--
-- KEYS[1]  run:{id}:fence   string  "<fence> <owner>", set
-- KEYS[2]  run:{id}:events  stream  entry "0-1" is the log's mark: field "log", its id; written when it is missing
-- ARGV[1]  the caller's "<fence> <owner>"
-- ARGV[2]  lifetime of both keys, ms
-- ARGV[3]  the id of a log that begins now
--
-- Returns {seq of the stream's last entry, 0 when there is none; the log's id}
--         {-1, ""} when the log belongs to somebody else, which is who has a higher fence, or the same under another
--         name

local MARK = '0-1'

local function fence_of(holder)
  return tonumber(string.match(holder, '^%d+'))
end

local held = redis.call('GET', KEYS[1])
if held and held ~= ARGV[1] and fence_of(held) >= fence_of(ARGV[1]) then
  return {-1, ''}
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])

local mark = redis.call('XRANGE', KEYS[2], MARK, MARK)[1]
if not mark then
  redis.call('DEL', KEYS[2])
  redis.call('XADD', KEYS[2], MARK, 'log', ARGV[3])
end
redis.call('PEXPIRE', KEYS[2], ARGV[2])

local newest = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)[1]
return {tonumber(string.match(newest[1], '^%d+')), mark and mark[2][2] or ARGV[3]}
