-- edge/spend: take units from a budget that refills evenly.
--
-- KEYS[1]  limit  hash+TTL  level, at (ms); one that is full again need not exist
-- ARGV[1]  cost
-- ARGV[2]  capacity   what is there when nothing was spent
-- ARGV[3]  window_ms  an empty one is full after this
-- ARGV[4]  owed       "1" = take it in any case: it was spent already
-- ARGV[5]  now        test clock in ms; "" means the server's clock
--
-- Returns  {"spent", remaining}                the units are taken
--          {"refused", remaining, retry_ms}    too few are there; nothing changed
--
-- Invariant  Over a window never more than twice the capacity is taken, and never more than it at once.
-- @include record

local now, capacity, cost = now_ms(ARGV[5]), tonumber(ARGV[2]), tonumber(ARGV[1])
local rate = capacity / tonumber(ARGV[3])
local level = tonumber(redis.call("HGET", KEYS[1], "level") or capacity)
local at = tonumber(redis.call("HGET", KEYS[1], "at") or now)
level = math.min(capacity, level + math.max(0, now - at) * rate)
if cost > level and ARGV[4] ~= "1" then
  return { "refused", ms(math.max(0, math.floor(level))), ms(math.ceil((cost - level) / rate)) }
end

-- writes
level = level - cost
redis.call("HSET", KEYS[1], "level", string.format("%.6f", level), "at", ms(now))
redis.call("PEXPIRE", KEYS[1], ms(math.ceil((capacity - level) / rate) + 1000))
return { "spent", ms(math.max(0, math.floor(level))) }
