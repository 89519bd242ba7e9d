-- Whose turn it is: what the scripts of the queue share. It is no script of its own, and stands in front of theirs.
--
-- A job that waits stands in the queue of its project, and projects take turns: the next place goes to the project that
-- has the fewest runs in flight, and among those to the one that was served, or came, longest ago.
--
-- KEYS[1]  holdfast:runs                 sorted set  job id → score. Of a job that waits in its project's queue: the ms
--                                        of its dispatch minus SHOWN, so below 0. Everything above 0 is leased until
--                                        then.
-- KEYS[2]  holdfast:turns                sorted set  project that has waiting jobs → rank: runs in flight, then the
--                                        number of its turn; RESTING is added while its runs in flight are at their limit
-- KEYS[3]  holdfast:turn                 string      the number of the newest turn
-- ARGV[1]  holdfast:waiting:<project>    prefix      sorted set  job id → ms of its dispatch minus its head start.
--                                        A job that a worker has had stands in front of all others, by HAD.
-- ARGV[2]  holdfast:in-flight:<project>  prefix      set         ids of leased jobs
-- ARGV[3]  arq:job:<job>                 prefix      string      what arq is to run; it names the project and the priority

local QUEUE, TURNS, TURN = KEYS[1], KEYS[2], KEYS[3]
local WAITING, IN_FLIGHT, JOB = ARGV[1], ARGV[2], ARGV[3]

local SHOWN = 2 ^ 42
local HAD = 2 ^ 42  -- more than any moment and any head start, in ms
local HEAD_START_MS = 600000  -- of one level of priority
local TURN_NUMBERS = 2 ^ 36
local MOST_IN_FLIGHT = 2 ^ 16 - 1
local RESTING = 2 ^ 52

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function whole(number)
  return string.format('%.0f', number)
end

-- The project and the priority of a job. One whose description does not say, or is gone, is the project of nobody.
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

-- The job stands in its project's queue from now on, behind those that have waited longer. It must be in holdfast:runs.
-- `was_had`: a worker has had it. Its run may be in the middle of an answer, so it does not wait for those to begin that
-- have not.
local function wait_for_turn(id, project, priority, since, was_had)
  redis.call('ZADD', QUEUE, 'XX', whole(since - SHOWN), id)
  redis.call('ZADD', WAITING .. project, whole(since - priority * HEAD_START_MS - (was_had and HAD or 0)), id)
  if not redis.call('ZSCORE', TURNS, project) then
    rank(project, next_turn())
  end
end

-- The job is no longer in flight; whether it was.
local function land(id, project)
  local was_in_flight = redis.call('SREM', IN_FLIGHT .. project, id) == 1
  local score = was_in_flight and redis.call('ZSCORE', TURNS, project)
  if score then
    rank(project, tonumber(score) % TURN_NUMBERS)
  end
  return was_in_flight
end
