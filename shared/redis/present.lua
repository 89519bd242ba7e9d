-- Lists a process with the others of its kind for a while, and removes expired processes from the list.
--
-- KEYS[1]  holdfast:processes:<kind>        sorted set  process → the Unix time, ms, until which it counts as live
-- KEYS[2]  holdfast:process:<kind>:<name>   string      its description of itself
-- ARGV[1]  the process's name
-- ARGV[2]  its description of itself
-- ARGV[3]  for how many ms it counts as live; both keys live as long

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
redis.call('ZADD', KEYS[1], string.format('%.0f', now + tonumber(ARGV[3])), ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[3])
return redis.call('ZCARD', KEYS[1])
