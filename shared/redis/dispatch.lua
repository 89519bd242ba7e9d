-- Puts jobs into the queue and wakes the workers. A job that is there already, waiting or at work, is left as it is.
--
-- KEYS[1]  holdfast:runs  sorted set  job id → score; now, for a job that is added
-- ARGV[1]  arq:job:       prefix of arq's descriptions of jobs: string, set for each job that has none
-- ARGV[2]  lifetime of a description, ms
-- ARGV[3]  holdfast:wake  channel, published
-- ARGV[4…] job id and description, for each job
--
-- Returns how many jobs were added.

local time = redis.call('TIME')
local now = string.format('%d', time[1] * 1000 + math.floor(time[2] / 1000))

local added = 0
for position = 4, #ARGV, 2 do
  redis.call('SET', ARGV[1] .. ARGV[position], ARGV[position + 1], 'NX', 'PX', ARGV[2])
  added = added + redis.call('ZADD', KEYS[1], 'NX', now, ARGV[position])
end
redis.call('PUBLISH', ARGV[3], '')
return added
