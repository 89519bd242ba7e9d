-- Makes the caller the owner of a run's log, unless a newer one has it.
--
-- KEYS[1]  run:{id}:fence   string  "<fence> <owner>", set
-- KEYS[2]  run:{id}:events  stream  entry id "<seq>-0"; expiry refreshed
-- ARGV[1]  the caller's "<fence> <owner>"
-- ARGV[2]  lifetime of both keys, ms
--
-- Returns the seq of the stream's last entry, 0 if there is none
--         -1 if another owner has the log: one with a higher fence, or with the same fence under another name

local function fence_of(holder)
  return tonumber(string.match(holder, '^%d+'))
end

local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] and fence_of(holder) >= fence_of(ARGV[1]) then
  return -1
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
redis.call('PEXPIRE', KEYS[2], ARGV[2])
local newest = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)[1]
return newest and tonumber(string.match(newest[1], '^%d+')) or 0
