-- The fair order of the queue: functions that its scripts share. This text is prepended to theirs.
--
-- A waiting job is in the queue of its project, and projects take turns. The next claim serves the project with the
-- fewest runs in flight, and among those the one that was served, or arrived, longest ago.
--
-- KEYS[1]  holdfast:runs                 sorted set  job id → score. For a job in its project's queue: the ms of its
--                                        dispatch minus SHOWN, so below 0. A score above 0 is the end of a lease.
-- KEYS[2]  holdfast:turns                sorted set  project that has waiting jobs → rank: runs in flight, then the
--                                        number of its turn; RESTING is added while its runs in flight are at their limit
-- KEYS[3]  holdfast:turn                 string      the number of the newest turn
-- ARGV[1]  holdfast:waiting:<project>    prefix      sorted set  job id → ms of its dispatch minus its head start.
--                                        A job that a worker has had precedes all others, by HAD.
-- ARGV[2]  holdfast:in-flight:<project>  prefix      set         ids of leased jobs
-- ARGV[3]  arq:job:<job>                 prefix      string      arq's description; it names the project and the priority

local QUEUE, TURNS, TURN = KEYS[1], KEYS[2], KEYS[3]
local WAITING, IN_FLIGHT, JOB = ARGV[1], ARGV[2], ARGV[3]

local SHOWN = 2 ^ 42
local HAD = 2 ^ 42  -- more than any Unix time and any head start, in ms
local HEAD_START_MS = 600000  -- of one level of priority
local TURN_NUMBERS = 2 ^ 36
local MOST_IN_FLIGHT = 2 ^ 16 - 1
local RESTING = 2 ^ 52

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function whole(number)
  return string.format('%.0f', number)
end

-- The project and the priority of a job. A job without a description belongs to the project of no name.
local function described(id)
  local text = redis.call('GET', JOB .. id)
  local is_json, job = pcall(cjson.decode, text or '')
  if not is_json or type(job) ~= 'table' then
    return '', 0
  end
  return type(job.project) == 'string' and job.project or '', tonumber(job.priority) or 0
end

local function next_turn()
  return redis.call('INCR', TURN) % TURN_NUMBERS
end

local function rank(project, turn)
  local in_flight = math.min(redis.call('SCARD', IN_FLIGHT .. project), MOST_IN_FLIGHT)
  redis.call('ZADD', TURNS, whole(in_flight * TURN_NUMBERS + turn), project)
end

-- Adds the job to its project's queue, after those that have waited longer. It must be in holdfast:runs. `was_had`: a
-- worker has had it. Its run may be in the middle of an answer, so it precedes runs that have not begun.
local function wait_for_turn(id, project, priority, since, was_had)
  redis.call('ZADD', QUEUE, 'XX', whole(since - SHOWN), id)
  redis.call('ZADD', WAITING .. project, whole(since - priority * HEAD_START_MS - (was_had and HAD or 0)), id)
  if not redis.call('ZSCORE', TURNS, project) then
    rank(project, next_turn())
  end
end

-- Marks the job as no longer in flight. Returns whether it was.
local function land(id, project)
  local was_in_flight = redis.call('SREM', IN_FLIGHT .. project, id) == 1
  local score = was_in_flight and redis.call('ZSCORE', TURNS, project)
  if score then
    rank(project, tonumber(score) % TURN_NUMBERS)
  end
  return was_in_flight
end
