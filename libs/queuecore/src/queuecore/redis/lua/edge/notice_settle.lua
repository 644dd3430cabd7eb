-- edge/notice_settle: what came of a claimed attempt.
--
-- KEYS[1]  notice    hash    webhook:<event>
-- KEYS[2]  webhooks  prefix  webhooks:; the names built from it are those of keys.py
-- ARGV[1]  event_id
-- ARGV[2]  token        of the claim
-- ARGV[3]  status       pending (again, in retry_in_ms), delivered, stopped or parked
-- ARGV[4]  retry_in_ms
-- ARGV[5]  attempt      JSON, one line of the log; opaque here
-- ARGV[6]  error        why it was not delivered; "" when it was
-- ARGV[7]  retain_ms    how long an ended notice stays readable
-- ARGV[8]  now          test clock in ms; "" means the server's clock
--
-- Returns  {"settled"}  it is written
--          {"lost"}     somebody else has claimed it since, or this was written before; nothing changed
--
-- Invariant  Only the latest claim of an attempt decides.
-- @include record
-- @include notice

if redis.call("HGET", KEYS[1], "token") ~= ARGV[2] then
  return { "lost" }
end
local target = redis.call("HGET", KEYS[1], "target")

-- writes
local now, id, base, log = now_ms(ARGV[8]), ARGV[1], KEYS[2], KEYS[1] .. ":log"
local due = base .. "due:" .. target
redis.call("HDEL", KEYS[1], "token")
redis.call("HSET", KEYS[1], "status", ARGV[3], "last_error", ARGV[6], "next_at", "")
redis.call("RPUSH", log, ARGV[5])
if redis.call("LLEN", log) > 100 then
  redis.call("LPOP", log)
end
if ARGV[3] == "pending" then
  local at = ms(now + ARGV[4])
  redis.call("ZADD", due, at, id)
  redis.call("HSET", KEYS[1], "next_at", at)
else
  redis.call("ZREM", due, id)
  redis.call("PEXPIRE", KEYS[1], ARGV[7])
  redis.call("PEXPIRE", log, ARGV[7])
  if ARGV[3] == "parked" then
    redis.call("ZADD", base .. "parked", ms(now), id)
  end
end
refresh_target(base, target)
return { "settled" }
