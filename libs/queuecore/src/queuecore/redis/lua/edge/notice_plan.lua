-- edge/notice_plan: a verdict is to be told to an address; once per event.
--
-- KEYS[1]  notice    hash    webhook:<event>
-- KEYS[2]  webhooks  prefix  webhooks:; the names built from it are those of keys.py
-- ARGV[1]  event_id
-- ARGV[2]  target    scheme, host and port of the receiver
-- ARGV[3]  fields    JSON object of text; values are opaque here
-- ARGV[4]  retain_ms  older entries leave the index
-- ARGV[5]  now       test clock in ms; "" means the server's clock
--
-- Returns  {"planned"}  due now
--          {"known"}    it was planned before; nothing changed
--
-- Invariant  Whatever is pending is in the due set of its target, and the target in the set of targets.
-- @include record

if redis.call("EXISTS", KEYS[1]) == 1 then
  return { "known" }
end

-- writes
local now, id, target, base = now_ms(ARGV[5]), ARGV[1], ARGV[2], KEYS[2]
local flat = {}
for name, value in pairs(cjson.decode(ARGV[3])) do
  flat[#flat + 1] = name
  flat[#flat + 1] = value
end
redis.call("HSET", KEYS[1], "event_id", id, "target", target, "status", "pending", "attempts", 0, "planned_at", ms(now),
  "next_at", ms(now), unpack(flat))
redis.call("ZADD", base .. "due:" .. target, ms(now), id)
redis.call("ZADD", base .. "targets", "LT", ms(now), target)
redis.call("ZADD", base .. "index", ms(now), id)
for _, old in ipairs(redis.call("ZRANGE", base .. "index", "-inf", ms(now - ARGV[4]), "BYSCORE", "LIMIT", 0, 100)) do
  redis.call("ZREM", base .. "index", old)
  redis.call("ZREM", base .. "parked", old)
end
return { "planned" }
