-- claim: the right to run one popped entry, or what became of it.
--
-- KEYS[1]  job    hash    the record
-- KEYS[2]  queue  prefix  relay:<model>; the names built from it are those of keys.py
-- ARGV[1]  job_id
-- ARGV[2]  claim_id       made by the caller; a repeat with it gets the same claim
-- ARGV[3]  owner          name of the worker
-- ARGV[4]  owner_client   <run_id>:<client id> of its liveness connection, or ""
-- ARGV[5]  lease_ms
-- ARGV[6]  execution_ms   from now on
-- ARGV[7]  max_reaps
-- ARGV[8]  result_ms
-- ARGV[9]  deadletter_ms
-- ARGV[10] tombstone_ms
-- ARGV[11] gates           JSON list of what must admit it (queuecore/gates.py)
-- ARGV[12] now             test clock in ms; "" means the server's clock
--
-- Returns  {"claimed", field, value, …}  the record, its claim included
--          {"dropped", "unknown"|"over"}   record gone, terminal or at another stage: the entry was removed
--          {"moved"}       the entry is not there any more: somebody was faster; nothing changed
--          {"held"}        somebody alive owns it; the entry stays in processing, which heals an operator's move
--          {"cancelled"} {"expired"} {"deadletter"} {"gate_dropped"}   that verdict was reached instead
--          {"waiting", ms, gate, "queue"|"job"|"fault"}   a gate refuses it for so long, or every job of this queue, or
--              could not say: it waits, and only the queue's count of refusals has changed (G7)
--
-- Invariant  At most one current claim per job; fence grows with each (G2).
-- @include record
-- @include place
-- @include wait
-- @include verdict
-- @include gates

local id, base, claim_id = ARGV[1], KEYS[2], ARGV[2]
local now, rec = now_ms(ARGV[12]), read_record(KEYS[1])
local replay = rec and rec.status == "processing" and rec.claim_id == claim_id

-- writes
local retention = { result = tonumber(ARGV[8]), deadletter = tonumber(ARGV[9]), tombstone = tonumber(ARGV[10]) }
local held = hold(base, id, rec or {})
if not rec or is_terminal(rec) or is_elsewhere(base, rec) then
  leave(base, id, rec and not is_elsewhere(base, rec) and rec or { status = "gone" })
  return { "dropped", rec and "over" or "unknown" }
end
if replay then
  local ends = lease_end(rec, now, ARGV[5], true)
  redis.call("HSET", KEYS[1], "lease_until", ms(ends))
  keep_slots(id, rec, ends)
  set_lease(base, id, rec.fence, claim_id, ends - now, ends)
  return { "claimed", unpack(redis.call("HGETALL", KEYS[1])) }
end
if not held then
  return { "moved" }
end
if lease_is_live(base, id, rec, now) then
  return { "held" }
end
if rec.cancel_requested == "1" then
  verdict(base, id, rec, "cancelled", { "error_code", "cancelled" }, now, retention.result, retention.tombstone)
  return { "cancelled" }
end
if rec.status == "processing" then
  local ended = end_dead_claim(base, id, rec, "lease lapsed", tonumber(ARGV[7]), now, retention, true)
  if ended ~= "requeued" then
    return { ended }
  end
end
if rec.deadline and tonumber(rec.deadline) <= now then
  verdict(base, id, rec, "expired", { "error_code", "deadline_exceeded", "error_message",
    "its deadline passed before a worker was free" }, now, retention.result, retention.tombstone)
  return { "expired" }
end
local refusal, gates = refusal_of(ARGV[11], base, id, rec, now, retention)
if refusal then
  return refusal
end
local claims, stop = count_of(rec, "claims") + 1, math.min(now + ARGV[6], tonumber(rec.deadline) or math.huge)
local ends, fence = lease_end(rec, now, ARGV[5], false), ms(count_of(rec, "fence") + 1)
take_gates(gates, id, rec, now, ends, fence)
redis.call("HSET", KEYS[1], "status", "processing", "fence", fence, "claim_id", claim_id, "owner", ARGV[3],
  "owner_client", ARGV[4], "started_at", ms(now), "lease_until", ms(ends), "execute_until", ms(stop),
  "claims", claims)
if claims == 1 then
  redis.call("HSET", KEYS[1], "queue_wait_ms", ms(now - math.max(since_of(rec), count_of(rec, "not_before"))))
end
redis.call("HDEL", KEYS[1], "returned", "return_to")
count_no_more(base, id, rec)
charge(base, rec)
redis.call("ZREM", base .. ":waiting", id)
redis.call("ZREM", base .. ":deadlines", id)
redis.call("ZREM", base .. ":missing", id)
set_lease(base, id, fence, claim_id, ends - now, ends)
changed(base, id)
return { "claimed", unpack(redis.call("HGETALL", KEYS[1])) }
