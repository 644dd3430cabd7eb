-- bury, is_buried, dig_up(base, id): dead letters as a list, oldest first.
local function bury(base, id)
  redis.call("RPUSH", dead_key(base), id)
end

local function is_buried(base, id)
  return redis.call("LPOS", dead_key(base), id) ~= false
end

local function dig_up(base, id)
  redis.call("LREM", dead_key(base), 0, id)
end
