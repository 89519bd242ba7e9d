-- The version whose workers continue the runs that began in another one (`versions.lua`).
--
-- KEYS[1]  holdfast:code-agents  hash, see versions.lua
-- ARGV[1]  the agent
-- ARGV[2]  the version in which the run began
--
-- Returns the version, or nil if no live worker has the agent.

local time = redis.call('TIME')
return (taker_of(KEYS[1], ARGV[1], ARGV[2], time[1] * 1000 + math.floor(time[2] / 1000)))
