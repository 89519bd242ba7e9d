-- Takes requests out of each of several buckets, or out of none of them.
--
-- KEYS[1], KEYS[2]…  holdfast:bucket:<owner>  string  the Unix time, µs, at which the bucket is full again; expires then
-- ARGV[1]  how many requests
-- ARGV[2…] requests per second and largest burst, for each bucket
--
-- Returns {0, 0}, or {the number of the first bucket with too few, ms until it has enough}

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local count = tonumber(ARGV[1])

local full_at = {}
for position, key in ipairs(KEYS) do
  local each = 1000000 / tonumber(ARGV[2 * position])
  local room = each * tonumber(ARGV[2 * position + 1])
  -- A time further ahead than a whole burst comes from a clock that was set back.
  local known = math.min(tonumber(redis.call('GET', key) or now), now + room)
  full_at[position] = math.max(known, now) + count * each
  if full_at[position] - now > room then
    return {position, math.ceil((full_at[position] - now - room) / 1000)}
  end
end
for position, key in ipairs(KEYS) do
  local lasts = math.max(1, math.ceil((full_at[position] - now) / 1000))
  redis.call('SET', key, string.format('%.0f', full_at[position]), 'PX', string.format('%.0f', lasts))
end
return {0, 0}
