-- Takes a lease again that Redis has forgotten, and puts the job back into the queue if it is gone from there too.
--
-- KEYS[1]  holdfast:runs          sorted set  job id → score; set to the end of the lease
-- KEYS[2]  arq:in-progress:<job>  string, the worker's name; set unless somebody has it
-- KEYS[3]  arq:job:<job>          string, what arq is to run; set if missing
-- ARGV[1]  job id
-- ARGV[2]  the worker's name
-- ARGV[3]  length of a lease, ms
-- ARGV[4]  slack of the scores, ms (see claim.lua)
-- ARGV[5]  arq's description of the job
-- ARGV[6]  its lifetime, ms
--
-- Returns 1, or 0 when somebody else has the lease.

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

if not redis.call('SET', KEYS[2], ARGV[2], 'NX', 'PX', ARGV[3]) and redis.call('GET', KEYS[2]) ~= ARGV[2] then
  return 0
end
redis.call('SET', KEYS[3], ARGV[5], 'NX', 'PX', ARGV[6])
redis.call('ZADD', KEYS[1], string.format('%d', now + tonumber(ARGV[3]) + tonumber(ARGV[4])), ARGV[1])
return 1
