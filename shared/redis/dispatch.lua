-- Puts jobs into the queue and wakes the workers. A job that is waiting or leased already stays unchanged.
--
-- KEYS[1] to KEYS[3], ARGV[1] to ARGV[3]  see fair_queue.lua
-- ARGV[4]  lifetime of a job's description, ms
-- ARGV[5]  holdfast:wake  channel, published
-- ARGV[6…] job id, description, project and priority, for each job
--
-- Returns how many jobs were added.

local added = 0
for position = 6, #ARGV, 4 do
  local id, project = ARGV[position], ARGV[position + 2]
  redis.call('SET', JOB .. id, ARGV[position + 1], 'NX', 'PX', ARGV[4])
  if redis.call('ZADD', QUEUE, 'NX', whole(now), id) == 1 then
    wait_for_turn(id, project, tonumber(ARGV[position + 3]), now)
    added = added + 1
  end
end
redis.call('PUBLISH', ARGV[5], '')
return added
