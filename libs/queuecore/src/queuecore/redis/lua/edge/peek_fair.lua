-- edge/peek_fair: the first entries of a sorted set whose tenants take turns (ADR 0008); nothing is taken.
--
-- KEYS[1]  queue  prefix  queue:<model>; :tenants is a zset tenant -> its tag, :tenant:<tenant> a zset id -> score
-- KEYS[2]  paused zset    waiting entries of a paused queue
-- ARGV[1]  limit
--
-- Returns  {id, …}  each tenant's first entry, the tenant served least before others; then their second ones, …; then
--                   what stands in the queue without being filed under a tenant (put there by hand, or before the
--                   setting was made)
--
-- Invariant  What it reads is bounded by limit, however deep the queue is.

local queue, limit = KEYS[1], tonumber(ARGV[1])
local strays, rows = {}, {}
for i, tenant in ipairs(redis.call("ZRANGE", queue .. ":tenants", 0, limit - 1)) do
  rows[i] = {}
  for _, id in ipairs(redis.call("ZRANGE", queue .. ":tenant:" .. tenant, 0, limit - 1)) do
    if redis.call("ZSCORE", queue, id) then
      rows[i][#rows[i] + 1] = id
    elseif not redis.call("ZSCORE", KEYS[2], id) then
      strays[#strays + 1] = { tenant, id }
    end
  end
end
local found, seen = {}, {}
local function offer(id)
  if id and not seen[id] and #found < limit then
    found[#found + 1], seen[id] = id, true
  end
end
for turn = 1, limit do
  for _, row in ipairs(rows) do
    offer(row[turn])
  end
end
for _, id in ipairs(redis.call("ZRANGE", queue, 0, limit - 1)) do
  offer(id)
end

-- writes
for _, one in ipairs(strays) do -- taken by a relay of another make, or by an operator
  redis.call("ZREM", queue .. ":tenant:" .. one[1], one[2])
  if redis.call("EXISTS", queue .. ":tenant:" .. one[1]) == 0 then
    redis.call("ZREM", queue .. ":tenants", one[1])
  end
end
return found
