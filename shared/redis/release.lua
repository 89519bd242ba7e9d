-- Releases a job before its lease ends, so that another worker can claim it at once.
--
-- KEYS[1] to KEYS[3], ARGV[1] to ARGV[3]  see fair_queue.lua
-- KEYS[4]  arq:in-progress:<job>  string, the worker's name; deleted if it is the caller's
-- ARGV[4]  job id
-- ARGV[5]  the worker's name
-- ARGV[6]  holdfast:wake          channel, published
--
-- Returns 1, or 0 when the lease was not the caller's and nothing was done.

local id = ARGV[4]
if redis.call('GET', KEYS[4]) ~= ARGV[5] then
  return 0
end
redis.call('DEL', KEYS[4])
local project, priority = described(id)
land(id, project)
if redis.call('ZSCORE', QUEUE, id) then
  wait_for_turn(id, project, priority, now, true)
end
redis.call('PUBLISH', ARGV[6], '')
return 1
