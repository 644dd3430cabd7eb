-- redrive: a dead letter becomes pending again, in a new generation.
--
-- KEYS[1]  job    hash    the record
-- KEYS[2]  queue  prefix  relay:<model>; the names built from it are those of keys.py
-- ARGV[1]  job_id
-- ARGV[2]  generation    the one to leave; a repeat with it changes nothing more
-- ARGV[3]  now           test clock in ms; "" means the server's clock
--
-- Returns  {"redriven"}      pending, generation + 1
--          {"over", status}  it is not a dead letter; nothing changed
--          {"missing"}       no such record
--
-- Invariant  Claims of before are void: the fence grows here too. Counters start again.
-- @include record
-- @include place
-- @include wait
-- @include item

local id, rec = ARGV[1], read_record(KEYS[1])
local base = base_of(KEYS[2], rec)
if not rec then
  return { "missing" }
end
if rec.generation == ms(ARGV[2] + 1) then
  return { "redriven" }
end
if rec.generation ~= ARGV[2] or rec.status ~= "failed" or not is_buried(base, id, rec) then
  return { "over", rec.status }
end

-- writes
local now = now_ms(ARGV[3])
dig_up(base, id, rec)
redis.call("DEL", KEYS[1] .. ":gone")
redis.call("PERSIST", KEYS[1])
if rec.idempotency then
  redis.call("PERSIST", rec.idempotency)
end
redis.call("HDEL", KEYS[1], "claim_id", "settled", "finished_at", "expires_at", "error_code", "error_message",
  "http_status", "processing_ms", "started_at", "owner", "owner_client", "execute_until", "cancel_requested", "not_before")
redis.call("HSET", KEYS[1], "status", "pending", "generation", ms(ARGV[2] + 1), "fence", ms(count_of(rec, "fence") + 1),
  "claims", 0, "reaps", 0, "failures", 0, "seq", redis.call("HINCRBY", base .. ":state", "seq", 1),
  "queued_at", ms(now), "waiting_since", ms(now))
redis.call("ZADD", base .. ":jobs", rec.created_at or "0", id)
rec.not_before, rec.status, rec.queued_at, rec.waiting_since = nil, "pending", ms(now), ms(now)
count_waiting(base, id, rec)
if rec.item and not redis.call("HGET", "dedup:jobs", rec.item) then
  take_item(id, rec, now)
end
admit_in_order(base, id, rec, now)
changed(base, id)
return { "redriven" }
