-- Leases jobs that wait, oldest first, to one worker.
--
-- KEYS[1]  holdfast:runs  sorted set  job id → score; scores of the leased jobs are moved to the end of their lease
-- ARGV[1]  arq:in-progress:  prefix of the leases: string, the worker's name; one is set for each claimed job
-- ARGV[2]  the worker's name
-- ARGV[3]  length of a lease, ms
-- ARGV[4]  how many jobs at most
-- ARGV[5]  slack, ms: a job is due when its score is at most that far in the future. A waiting job's score may come
--          from another clock, which ran ahead; the score of a leased job has the slack added, so for it "due" means
--          exactly that the lease is over. A dead worker's jobs come back by themselves.
--
-- Returns {ms until the next lease in the queue ends, or -1 when the queue is empty; id of each claimed job}

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local lease, slack = tonumber(ARGV[3]), tonumber(ARGV[5])

local function set_visible(id, moment)
  redis.call('ZADD', KEYS[1], 'XX', string.format('%d', moment + slack), id)
end

local answer = {-1}
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', string.format('%d', now + slack), 'LIMIT', 0, ARGV[4])) do
  local key = ARGV[1] .. id
  if redis.call('SET', key, ARGV[2], 'NX', 'PX', ARGV[3]) then
    set_visible(id, now + lease)
    answer[#answer + 1] = id
  else
    -- Somebody's lease goes on although the score says otherwise: the queue was written anew. The lease decides.
    set_visible(id, now + redis.call('PTTL', key) + 1)
  end
end

local nearest = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
if nearest[2] then
  answer[1] = math.max(0, tonumber(nearest[2]) - slack - now)
end
return answer
