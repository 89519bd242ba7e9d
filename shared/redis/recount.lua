-- Repairs the keys of the queue after a loss of data. A run that counts as in flight without a lease would take turns
-- from its project, and a job that is only in holdfast:runs would wait for ever.
--
-- KEYS[1] to KEYS[3], ARGV[1] to ARGV[3]  see fair_queue.lua
-- ARGV[4]  arq:in-progress:  prefix of the leases: string, the worker's name
--
-- Returns the number of repaired jobs.

local mended, waiting = 0, 0
local projects = redis.call('ZRANGE', TURNS, 0, -1, 'WITHSCORES')
for position = 1, #projects, 2 do
  local project = projects[position]
  for _, id in ipairs(redis.call('SMEMBERS', IN_FLIGHT .. project)) do
    if redis.call('EXISTS', ARGV[4] .. id) == 0 then
      redis.call('SREM', IN_FLIGHT .. project, id)
      mended = mended + 1
    end
  end
  rank(project, tonumber(projects[position + 1]) % TURN_NUMBERS)
  waiting = waiting + redis.call('ZCARD', WAITING .. project)
end

if redis.call('ZCOUNT', QUEUE, '-inf', '(0') > waiting then
  -- With a score above 0, the next claim puts them back into their projects' queues.
  local shown = redis.call('ZRANGEBYSCORE', QUEUE, '-inf', '(0', 'WITHSCORES')
  for position = 1, #shown, 2 do
    redis.call('ZADD', QUEUE, 'XX', whole(tonumber(shown[position + 1]) + SHOWN), shown[position])
  end
  mended = mended + #shown / 2
end
return mended
