-- Makes the caller the owner of a run's log, unless a newer one has it.
--
-- KEYS[1]  run:{id}:fence   string  "<fence> <owner>", set
-- KEYS[2]  run:{id}:events  stream  only read
-- ARGV[1]  the caller's "<fence> <owner>"
-- ARGV[2]  lifetime of the fence, ms
--
-- Returns {seq of the stream's last entry, 0 when there is none; 1 when Redis knew an owner before, else 0}
--         {-1, 1} when the log belongs to somebody else, which is who has a higher fence, or the same under another name

local function fence_of(holder)
  return tonumber(string.match(holder, '^%d+'))
end

local held = redis.call('GET', KEYS[1])
if held and held ~= ARGV[1] and fence_of(held) >= fence_of(ARGV[1]) then
  return {-1, 1}
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])

local newest = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)[1]
return {newest and tonumber(string.match(newest[1], '^%d+')) or 0, held and 1 or 0}
