-- erase: forget a finished job now; its tombstone says that it was deleted.
--
-- KEYS[1]  job    hash    the record
-- KEYS[2]  queue  prefix  relay:<model>; the names built from it are those of keys.py
-- ARGV[1]  job_id
-- ARGV[2]  tombstone_ms
-- ARGV[3]  now           test clock in ms; "" means the server's clock
--
-- Returns  {"erased"}        the record is gone, and its Idempotency-Key is free
--          {"live", status}  it has no verdict yet; nothing changed
--          {"missing"}       no such record
--
-- Invariant  Whoever asks for the job after this is told that it is gone, and never that it never was.
-- @include record
-- @include place

local rec = read_record(KEYS[1])
if not rec then
  return { "missing" }
end
if not is_terminal(rec) then
  return { "live", rec.status }
end

-- writes
local gone, base = KEYS[1] .. ":gone", base_of(KEYS[2], rec)
redis.call("DEL", KEYS[1], KEYS[1] .. ":progress")
if rec.idempotency then
  redis.call("DEL", rec.idempotency)
end
redis.call("HSET", gone, "status", rec.status, "cause", "deleted", "finished_at", rec.finished_at or "", "expires_at",
  ms(now_ms(ARGV[3])), "model", string.sub(base, 7), "service_type", rec.service_type or "", "tenant", rec.tenant or "",
  "pipeline", rec.pipeline or "")
redis.call("PEXPIRE", gone, ARGV[2])
redis.call("ZREM", base .. ":jobs", ARGV[1])
forget(base, ARGV[1])
return { "erased" }
