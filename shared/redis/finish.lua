-- Removes a job that is done.
--
-- KEYS[1]  holdfast:runs          sorted set  job id → score; the job is removed
-- KEYS[2]  arq:in-progress:<job>  string, the worker's name; deleted
-- KEYS[3]  arq:job:<job>          string, what arq was to run; deleted
-- KEYS[4]  arq:retry:<job>        string, arq's counter of starts; deleted
-- ARGV[1]  job id
-- ARGV[2]  the worker's name
--
-- Returns 1, or 0 when somebody else has the lease and nothing was done: it is for them to finish the job.

local holder = redis.call('GET', KEYS[2])
if holder and holder ~= ARGV[2] then
  return 0
end
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('DEL', KEYS[2], KEYS[3], KEYS[4])
return 1
