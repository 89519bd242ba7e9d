-- The versions of agents of operators' own code that live workers have: functions that scripts share.
--
-- KEYS[1] or KEYS[4], which the caller names: holdfast:code-agents
--   hash  agent, tab, version → `<until> <first>`: the Unix time, ms, until which a worker that has it counts as live,
--         and that at which a worker first had it

-- The version whose workers continue the runs that began in `version`: that version while a worker with it lives, else
-- the newest one that lives. Also returns until when its workers count as live. Nil: no live worker has the agent.
local function taker_of(key, agent, version, now)
  local newest, newest_first, newest_until
  local shown = redis.call('HGETALL', key)
  for position = 1, #shown, 2 do
    local name, other = string.match(shown[position], '^([^\t]*)\t(.*)$')
    local live_until, first = string.match(shown[position + 1], '^(%d+) (%d+)$')
    live_until, first = tonumber(live_until), tonumber(first)
    if name == agent and live_until and live_until > now then
      if other == version then
        return other, live_until
      end
      if not newest or first > newest_first or (first == newest_first and other > newest) then
        newest, newest_first, newest_until = other, first, live_until
      end
    end
  end
  return newest, newest_until
end
