-- Renews a worker's leases, all in one call.
--
-- KEYS[1]  holdfast:runs  sorted set  job id → score; moved to the end of the lease
-- ARGV[1]  arq:in-progress:  prefix of the leases: string, the worker's name; only the worker's own are renewed
-- ARGV[2]  the worker's name
-- ARGV[3]  length of a lease, ms
-- ARGV[4]  slack of the scores, ms (see claim.lua)
-- ARGV[5…] job ids
--
-- Returns for each job: 1 renewed; 0 another worker holds it; -1 there is no lease.

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local visible = string.format('%d', now + tonumber(ARGV[3]) + tonumber(ARGV[4]))

local answer = {}
for position = 5, #ARGV do
  local id = ARGV[position]
  local key = ARGV[1] .. id
  local holder = redis.call('GET', key)
  if holder == ARGV[2] then
    redis.call('PEXPIRE', key, ARGV[3])
    redis.call('ZADD', KEYS[1], 'XX', visible, id)
    answer[#answer + 1] = 1
  else
    answer[#answer + 1] = holder and 0 or -1
  end
end
return answer
