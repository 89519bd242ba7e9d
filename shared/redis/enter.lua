-- Counts one more reader in each of several groups, or in none of them.
--
-- KEYS[1], KEYS[2]…  holdfast:readers:<owner>  sorted set  reader → the Unix time, ms, until which it counts
-- ARGV[1]  the reader
-- ARGV[2]  for how many ms it counts; the keys live as long
-- ARGV[3…] how many readers each group may have
--
-- Returns 0, or the number of the first group that is full.

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

for position, key in ipairs(KEYS) do
  redis.call('ZREMRANGEBYSCORE', key, '-inf', now)
  local is_in = redis.call('ZSCORE', key, ARGV[1])
  if not is_in and redis.call('ZCARD', key) >= tonumber(ARGV[2 + position]) then
    return position
  end
end
for _, key in ipairs(KEYS) do
  redis.call('ZADD', key, string.format('%.0f', now + tonumber(ARGV[2])), ARGV[1])
  redis.call('PEXPIRE', key, ARGV[2])
end
return 0
