-- Reads how many jobs wait and for how long, and how many are leased. It changes nothing.
--
-- KEYS[1] to KEYS[3], ARGV[1] to ARGV[3]  see fair_queue.lua
-- ARGV[4]  slack, ms: see claim.lua
--
-- Returns {number of waiting jobs, ms for which the oldest of them has waited, number of leased jobs}. A job that lost
-- its lease waits again, since the end of the lease.

local slack = tonumber(ARGV[4])
local due = whole(now + slack)
local waiting = redis.call('ZCOUNT', QUEUE, '-inf', due)
local leased = redis.call('ZCOUNT', QUEUE, '(' .. due, '+inf')
local since = now
local first = redis.call('ZRANGEBYSCORE', QUEUE, '-inf', '(0', 'WITHSCORES', 'LIMIT', 0, 1)
if first[2] then
  since = math.min(since, tonumber(first[2]) + SHOWN)
end
local lost = redis.call('ZRANGEBYSCORE', QUEUE, '0', due, 'WITHSCORES', 'LIMIT', 0, 1)
if lost[2] then
  since = math.min(since, tonumber(lost[2]) - slack)
end
return {waiting, now - since, leased}
