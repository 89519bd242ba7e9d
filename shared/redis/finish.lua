-- Removes a finished job.
--
-- KEYS[1] to KEYS[3], ARGV[1] to ARGV[3]  see fair_queue.lua
-- KEYS[4]  arq:in-progress:<job>  string, the worker's name; deleted
-- KEYS[5]  arq:job:<job>          string, arq's description of the job; deleted
-- KEYS[6]  arq:retry:<job>        string, arq's counter of starts; deleted
-- ARGV[4]  job id
-- ARGV[5]  the worker's name
--
-- Returns 1, or 0 if another worker holds the lease, which has to finish the job; nothing was done then.

local id = ARGV[4]
local holder = redis.call('GET', KEYS[4])
if holder and holder ~= ARGV[5] then
  return 0
end
local project = described(id)
redis.call('ZREM', QUEUE, id)
redis.call('ZREM', WAITING .. project, id)
land(id, project)
redis.call('DEL', KEYS[4], KEYS[5], KEYS[6])
if redis.call('EXISTS', QUEUE) == 0 then
  -- The queue is empty, so the numbers of turns start again.
  redis.call('DEL', TURN)
end
return 1
