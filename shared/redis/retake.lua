-- Takes a lease again that Redis has lost, and puts the job back into the queue if it is lost there too.
--
-- KEYS[1] to KEYS[3], ARGV[1] to ARGV[3]  see fair_queue.lua
-- KEYS[4]  arq:in-progress:<job>  string, the worker's name; set unless it exists
-- KEYS[5]  arq:job:<job>          string, arq's description of the job; set if missing
-- ARGV[4]  job id
-- ARGV[5]  the worker's name
-- ARGV[6]  length of a lease, ms
-- ARGV[7]  slack of the scores, ms (see claim.lua)
-- ARGV[8]  arq's description of the job
-- ARGV[9]  its lifetime, ms
--
-- Returns 1, or 0 if another worker holds the lease.

local id = ARGV[4]
if not redis.call('SET', KEYS[4], ARGV[5], 'NX', 'PX', ARGV[6]) and redis.call('GET', KEYS[4]) ~= ARGV[5] then
  return 0
end
redis.call('SET', KEYS[5], ARGV[8], 'NX', 'PX', ARGV[9])
redis.call('ZADD', QUEUE, whole(now + tonumber(ARGV[6]) + tonumber(ARGV[7])), id)
local project = described(id)
redis.call('ZREM', WAITING .. project, id)
redis.call('SADD', IN_FLIGHT .. project, id)
return 1
