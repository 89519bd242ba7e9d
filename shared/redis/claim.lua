-- Leases waiting jobs to one worker, in the order of `fair_queue.lua`.
--
-- KEYS[1] to KEYS[3], ARGV[1] to ARGV[3]  see fair_queue.lua
-- KEYS[4]  holdfast:code-agents  hash, see versions.lua
-- ARGV[4]  arq:in-progress:  prefix of the leases: string, the worker's name; one is set for each claimed job
-- ARGV[5]  the worker's name
-- ARGV[6]  length of a lease, ms
-- ARGV[7]  how many jobs at most
-- ARGV[8]  how many jobs beyond these, of projects that have none in flight
-- ARGV[9]  slack, ms: a job is due when its score is at most that far in the future. A waiting job's score may come
--          from another clock, which ran ahead. The score of a leased job includes the slack, so such a job is due
--          exactly when its lease has ended. The jobs of a dead worker become due by themselves.
-- ARGV[10] the agents of an operator's own code that the worker has: of each its name, a tab, its version and a line
--          end. The worker skips the queues of other agents: the name of such a queue is the project, a line end and the
--          agent, and for runs that began in a version a tab and that version.
-- ARGV[11] how many runs a project may have in flight; 0: no limit
-- ARGV[12…] a project and its own limit, for each that has one
--
-- Returns {0 if there are more jobs that this worker could claim, else ms until the next lease in the queue ends or the
-- workers with the version of a waiting run may be gone, or -1 if there is neither; id of each claimed job}

local SORTED_AT_ONCE = 200
local LOOKS = 1000

local lease, most, spare, slack = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])
local limits = {}
for position = 12, #ARGV, 2 do
  limits[ARGV[position]] = tonumber(ARGV[position + 1])
end

local function set_visible(id, moment)
  redis.call('ZADD', QUEUE, 'XX', whole(moment + slack), id)
end

-- A due job that is in no project's queue: its lease has ended.
local function sort_in()
  local due = redis.call('ZRANGEBYSCORE', QUEUE, '0', whole(now + slack), 'WITHSCORES', 'LIMIT', 0, SORTED_AT_ONCE)
  for position = 1, #due, 2 do
    local id, score = due[position], tonumber(due[position + 1])
    local left = redis.call('PTTL', ARGV[4] .. id)
    if left > 0 then
      -- A lease continues although the score says otherwise: the queue was rebuilt. The lease decides.
      set_visible(id, now + left + 1)
    else
      local project, priority = described(id)
      local was_had = land(id, project)
      wait_for_turn(id, project, priority, math.min(score, now), was_had)
    end
  end
end

local function take(id, project)
  if not redis.call('ZSCORE', QUEUE, id) then
    return false
  end
  local key = ARGV[4] .. id
  if not redis.call('SET', key, ARGV[5], 'NX', 'PX', ARGV[6]) then
    set_visible(id, now + redis.call('PTTL', key) + 1)
    return false
  end
  set_visible(id, now + lease)
  redis.call('SADD', IN_FLIGHT .. project, id)
  return true
end

local owned = {}
for agent, version in string.gmatch(ARGV[10], '([^\t\n]+)\t([^\n]*)\n') do
  owned[agent] = version
end
local taken_again  -- ms, when the worker may have to take runs of a version that another worker has now

local function is_for_others(project)
  local agent, version = string.match(project, '\n([^\t]*)\t?(.*)$')
  local own = owned[agent or '']
  if not agent or not own or version == '' or version == own then
    return agent and not own
  end
  local taker, live_until = taker_of(KEYS[4], agent, version, now)
  if taker and taker ~= own then
    taken_again = math.min(taken_again or live_until, live_until)
    return true
  end
  return false
end

sort_in()
local answer, is_cut, skipped = {-1}, false, 0
for look = 1, LOOKS do
  local first = redis.call('ZRANGE', TURNS, skipped, skipped, 'WITHSCORES')
  local project, score = first[1], tonumber(first[2])
  local claimed = #answer - 1
  if not project or score >= RESTING or (claimed >= most and score >= TURN_NUMBERS) then
    break
  end
  if claimed >= most + spare or look == LOOKS then
    is_cut = true
    break
  end
  local limit = limits[string.match(project, '^[^\n]*')] or tonumber(ARGV[11])
  if is_for_others(project) then
    skipped = skipped + 1
  elseif limit > 0 and score >= limit * TURN_NUMBERS then
    redis.call('ZADD', TURNS, whole(score + RESTING), project)
  else
    local id = redis.call('ZPOPMIN', WAITING .. project)[1]
    if id and take(id, project) then
      answer[#answer + 1] = id
      rank(project, next_turn())
    end
    if redis.call('EXISTS', WAITING .. project) == 0 then
      redis.call('ZREM', TURNS, project)
    end
  end
end

local nearest = redis.call('ZRANGEBYSCORE', QUEUE, '0', '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
if is_cut then
  answer[1] = 0
elseif nearest[2] or taken_again then
  local lease_ends = nearest[2] and tonumber(nearest[2]) - slack or taken_again
  answer[1] = math.max(0, math.min(lease_ends, taken_again or lease_ends) - now)
end
return answer
