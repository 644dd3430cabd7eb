-- edge/notice_redeliver: plan a notice anew, whatever came of it.
--
-- KEYS[1]  notice    hash    webhook:<event>
-- KEYS[2]  webhooks  prefix  webhooks:; the names built from it are those of keys.py
-- ARGV[1]  event_id
-- ARGV[2]  now       test clock in ms; "" means the server's clock
--
-- Returns  {"planned"}  due now, its time and attempts counted anew
--          {"missing"}  there is no such notice
--
-- Invariant  An attempt that runs at this moment does not decide any more.
-- @include record
-- @include notice

local target = redis.call("HGET", KEYS[1], "target")
if not target then
  return { "missing" }
end

-- writes
local now, id, base = now_ms(ARGV[2]), ARGV[1], KEYS[2]
redis.call("HDEL", KEYS[1], "token")
redis.call("HSET", KEYS[1], "status", "pending", "attempts", 0, "planned_at", ms(now), "next_at", ms(now))
redis.call("PERSIST", KEYS[1])
redis.call("PERSIST", KEYS[1] .. ":log")
redis.call("ZREM", base .. "parked", id)
redis.call("ZADD", base .. "index", ms(now), id)
redis.call("ZADD", base .. "due:" .. target, ms(now), id)
refresh_target(base, target)
return { "planned" }
