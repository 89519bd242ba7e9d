-- Extends the time for which readers of one group count.
--
-- KEYS[1]  holdfast:readers:<owner>  sorted set  reader → the Unix time, ms, until which it counts
-- ARGV[1]  for how many ms each counts; the key lives as long
-- ARGV[2…] the readers; few enough for the arguments of one command

local time = redis.call('TIME')
local until_ms = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000) + tonumber(ARGV[1]))

local members = {}
for position = 2, #ARGV do
  members[#members + 1] = until_ms
  members[#members + 1] = ARGV[position]
end
redis.call('ZADD', KEYS[1], unpack(members))
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return #ARGV - 1
