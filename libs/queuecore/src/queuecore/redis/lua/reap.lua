-- reap: look at one processing entry and, if its owner is dead, give the job to others.
--
-- KEYS[1]  job    hash    the record
-- KEYS[2]  queue  prefix  relay:<model>; the names built from it are those of keys.py
-- ARGV[1]  job_id
-- ARGV[2]  grace_ms        an entry without a claim of ours must have been seen this long ago
-- ARGV[3]  owner_client    "" judges by the lease; else reap although the lease lives, if this client,
-- ARGV[4]  fence           this fence
-- ARGV[5]  claim_id        and this claim are still the registered ones (fast death notice)
-- ARGV[6]  cause           what is known of the death
-- ARGV[7]  max_reaps
-- ARGV[8]  result_ms
-- ARGV[9]  deadletter_ms
-- ARGV[10] tombstone_ms
-- ARGV[11] now             test clock in ms; "" means the server's clock
--
-- Returns  {"requeued"}    pending again at its old place; counted unless it had never been claimed
--          {"deadletter"}  the cap was passed: failed, worker_lost
--          {"cancelled"}   that was requested
--          {"dropped"}     record gone, terminal or at another stage: the entry was removed
--          {"adopted"}     a foreign relay's live lease is now recorded as a claim, so that its deaths count
--          {"waiting"}     within its grace
--          {"live"}        its owner is alive, or no longer the one that was held dead
--          {"skipped"}     not in processing
--
-- Invariant  A job whose owner renews in time is never taken from it (G2).
-- @include record
-- @include place
-- @include wait
-- @include verdict

local id, base = ARGV[1], KEYS[2]
local now, rec = now_ms(ARGV[11]), read_record(KEYS[1])
local held = is_held(base, id)
local by_client = ARGV[3] ~= ""
if by_client and not (rec and is_elsewhere(base, rec)) and (not held or not rec or rec.status ~= "processing" or rec.owner_client ~= ARGV[3]
  or not owns(rec, ARGV[4], ARGV[5])) then
  return { held and "live" or "skipped" }
end

-- writes
if not held then
  redis.call("ZREM", base .. ":first-seen", id)
  return { "skipped" }
end
if not rec or is_terminal(rec) or is_elsewhere(base, rec) then
  leave(base, id, rec and not is_elsewhere(base, rec) and rec or { status = "gone" })
  return { "dropped" }
end
if not by_client and lease_is_live(base, id, rec, now) then
  redis.call("ZREM", base .. ":first-seen", id)
  if rec.status ~= "pending" then
    return { "live" }
  end
  redis.call("HSET", KEYS[1], "status", "processing", "fence", ms(count_of(rec, "fence") + 1), "claim_id", "foreign",
    "owner", "foreign", "started_at", ms(now), "claims", count_of(rec, "claims") + 1)
  count_no_more(base, id, rec)
  redis.call("ZREM", base .. ":waiting", id)
  redis.call("ZREM", base .. ":deadlines", id)
  changed(base, id)
  return { "adopted" }
end
if rec.status == "pending" or rec.claim_id == "foreign" then
  redis.call("ZADD", base .. ":first-seen", "NX", ms(now), id)
  if now - redis.call("ZSCORE", base .. ":first-seen", id) < tonumber(ARGV[2]) then
    return { "waiting" }
  end
end
local retention = { result = tonumber(ARGV[8]), deadletter = tonumber(ARGV[9]), tombstone = tonumber(ARGV[10]) }
if rec.status == "pending" then -- a stranded pop: moved, never claimed, not counted
  requeue(base, id, rec, now)
  return { "requeued" }
end
return { end_dead_claim(base, id, rec, ARGV[6], tonumber(ARGV[7]), now, retention, false) }
