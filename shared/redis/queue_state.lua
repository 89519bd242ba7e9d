-- How much waits in the queue and for how long, and how much is at work. It changes nothing.
--
-- KEYS[1] to KEYS[3], ARGV[1] to ARGV[3]  see turns.lua
-- ARGV[4]  slack, ms: see claim.lua
--
-- Returns {how many jobs wait, for how many ms the one that waits longest, how many are leased}. What has lost its
-- lease waits again, since the lease ended.

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
