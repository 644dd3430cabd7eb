-- submit: record, queue entry and index in one step, once per id.
--
-- KEYS[1]  job    hash    the record
-- KEYS[2]  queue  prefix  relay:<model>; the names built from it are those of keys.py
-- KEYS[3]  idem   hash+TTL  the Idempotency-Key's, see edge/reserve; without a key nothing of it is touched
-- KEYS[4]  seen   zset      dedup:seen, item -> until when; dedup:jobs beside it is a hash item -> the job that took it
-- KEYS[5]  cache  string    cache:<endpoint_hash>:<params_hash>; without cache_ms nothing of it is touched
-- ARGV[1]  job_id
-- ARGV[2]  max_pending   jobs that may wait
-- ARGV[3]  fields        JSON object of record fields, all strings; values are opaque here
-- ARGV[4]  token         the reservation's; "" = the request had no key
-- ARGV[5]  fingerprint   of the request
-- ARGV[6]  tenant_cap    jobs of this job's tenant that may wait; "" = no cap, and nothing of it is written
-- ARGV[7]  item          what may be taken once; "" = nothing
-- ARGV[8]  window_ms     how long it counts as taken
-- ARGV[9]  force         "1" = take it again
-- ARGV[10] cache_ms      how long the result may answer such requests; "" = never
-- ARGV[11] fresh         "1" = run it all the same
-- ARGV[12] now           test clock in ms; "" means the server's clock
--
-- An item is free again when its job ends in any way but completed. Items whose window is over are forgotten on the way.
--
-- Returns  {"created", "pending", created_at}
--          {"exists", status}      this id was submitted before; nothing changed
--          {"unreserved"}          another request has the Idempotency-Key meanwhile; nothing changed
--          {"duplicate", job_id}   the item was taken within its window, by this job; nothing changed
--          {"cached", job_id}      this job answers such requests, or will; nothing changed
--          {"full"}                max_pending jobs wait already; nothing changed
--          {"tenant_full"}         so many of its tenant's wait already; nothing changed
--
-- Invariant  A record exists if and only if its job was acknowledged or is about to be.
-- @include record
-- @include place
-- @include wait
-- @include item
-- @include reuse
-- @include tenant

local id, base = ARGV[1], KEYS[2]
local known = redis.call("HGET", KEYS[1], "status")
if known then
  return { "exists", known }
end
local token = ARGV[4]
if token ~= "" and redis.call("EXISTS", KEYS[3]) == 1 and redis.call("HGET", KEYS[3], "token") ~= token then
  return { "unreserved" }
end
local item = ARGV[7]
local until_ms = item ~= "" and ARGV[9] ~= "1" and redis.call("ZSCORE", KEYS[4], item)
if until_ms and tonumber(until_ms) > now_ms(ARGV[12]) then
  return { "duplicate", redis.call("HGET", "dedup:jobs", item) or "" }
end
local answering = reusable(KEYS[5], ARGV[10], ARGV[11], ARGV[12])
if answering then
  return { "cached", answering }
end
if waiting_count(base) >= tonumber(ARGV[2]) then
  return { "full" }
end
local rec = cjson.decode(ARGV[3]) -- strings only: nothing in them is ever encoded again
local strays, cap = {}, tonumber(ARGV[6])
if cap then
  rec.capped = "1"
  local waiting = redis.call("SCARD", tenant_set(base, rec))
  if waiting >= cap then
    strays = strays_of(tenant_set(base, rec))
    if waiting - #strays >= cap then
      return { "tenant_full" }
    end
  end
end

-- writes
local now = now_ms(ARGV[12])
for _, other in ipairs(strays) do
  redis.call("SREM", tenant_set(base, rec), other)
end
if item ~= "" then
  rec.item, rec.item_ms = item, ARGV[8]
  take_item(id, rec, now)
end
answer_with(KEYS[5], ARGV[10], id, rec)
local flat = {}
for name, value in pairs(rec) do
  flat[#flat + 1] = name
  flat[#flat + 1] = value
end
rec.status, rec.created_at = "pending", ms(now)
rec.seq = tostring(redis.call("HINCRBY", base .. ":state", "seq", 1))
redis.call("HSET", KEYS[1], "id", id, "status", "pending", "generation", "1", "created_at", rec.created_at, "seq",
  rec.seq, unpack(flat))
if token ~= "" then -- the answer lives as long as the record: without end now, and shortened with it by the verdict
  redis.call("DEL", KEYS[3])
  redis.call("HSET", KEYS[3], "job_id", id, "fingerprint", ARGV[5])
  redis.call("HSET", KEYS[1], "idempotency", KEYS[3])
end
redis.call("ZADD", base .. ":jobs", rec.created_at, id)
count_waiting(base, id, rec)
admit_in_order(base, id, rec, now)
return { "created", "pending", rec.created_at }
