-- Gives a job back before its lease ends, so that another worker takes it at once.
--
-- KEYS[1]  holdfast:runs          sorted set  job id → score; set to now
-- KEYS[2]  arq:in-progress:<job>  string, the worker's name; deleted if it is the caller's
-- ARGV[1]  job id
-- ARGV[2]  the worker's name
-- ARGV[3]  holdfast:wake          channel, published
--
-- Returns 1, or 0 when the lease was not the caller's and nothing was done.

if redis.call('GET', KEYS[2]) ~= ARGV[2] then
  return 0
end
local time = redis.call('TIME')
redis.call('DEL', KEYS[2])
redis.call('ZADD', KEYS[1], 'XX', string.format('%d', time[1] * 1000 + math.floor(time[2] / 1000)), ARGV[1])
redis.call('PUBLISH', ARGV[3], '')
return 1
