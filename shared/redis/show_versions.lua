-- Shows for a while that a live worker has versions of agents, and removes those that no live worker has.
--
-- KEYS[1]  holdfast:code-agents  hash, see versions.lua
-- ARGV[1]  for how many ms the worker counts as live; the key lives as long
-- ARGV[2…] agent, tab, version; and the Unix time, ms, at which a worker first had it; for each agent
--
-- Returns how many versions are shown.

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local shown = redis.call('HGETALL', KEYS[1])
for position = 1, #shown, 2 do
  local live_until = tonumber(string.match(shown[position + 1], '^%d+'))
  if not live_until or live_until <= now then
    redis.call('HDEL', KEYS[1], shown[position])
  end
end
for position = 2, #ARGV, 2 do
  local text = string.format('%.0f %.0f', now + tonumber(ARGV[1]), tonumber(ARGV[position + 1]))
  redis.call('HSET', KEYS[1], ARGV[position], text)
end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return redis.call('HLEN', KEYS[1])
