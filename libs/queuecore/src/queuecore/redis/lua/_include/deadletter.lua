-- bury, is_buried, dig_up(base, id): dead letters as a list, oldest first.
local function bury(base, id)
  redis.call("RPUSH", base .. ":deadletter", id)
end

local function is_buried(base, id)
  return redis.call("LPOS", base .. ":deadletter", id) ~= false
end

local function dig_up(base, id)
  redis.call("LREM", base .. ":deadletter", 0, id)
end
