-- The set of targets follows the first due notice of each.

-- refresh_target(base, target): after the due set of the target changed.
local function refresh_target(base, target)
  local first = redis.call("ZRANGE", base .. "due:" .. target, 0, 0, "WITHSCORES")
  if first[1] then
    redis.call("ZADD", base .. "targets", first[2], target)
  else
    redis.call("ZREM", base .. "targets", target)
  end
end
