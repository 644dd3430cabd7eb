-- submit: record, queue entry and index in one step, once per id.
--
-- KEYS[1]  job    hash    the record
-- KEYS[2]  queue  prefix  relay:<model>; the names built from it are those of keys.py
-- ARGV[1]  job_id
-- ARGV[2]  max_pending   jobs that may wait
-- ARGV[3]  fields        JSON object of record fields, all strings; values are opaque here
-- ARGV[4]  now           test clock in ms; "" means the server's clock
--
-- Returns  {"created", "pending", created_at}
--          {"exists", status}      this id was submitted before; nothing changed
--          {"full"}                max_pending jobs wait already; nothing changed
--
-- Invariant  A record exists if and only if its job was acknowledged or is about to be.
-- @include record
-- @include place
-- @include wait

local id, base = ARGV[1], KEYS[2]
local known = redis.call("HGET", KEYS[1], "status")
if known then
  return { "exists", known }
end
if waiting_count(base) >= tonumber(ARGV[2]) then
  return { "full" }
end

-- writes
local now = now_ms(ARGV[4])
local rec = cjson.decode(ARGV[3]) -- strings only: nothing in them is ever encoded again
local flat = {}
for name, value in pairs(rec) do
  flat[#flat + 1] = name
  flat[#flat + 1] = value
end
rec.status, rec.created_at = "pending", ms(now)
rec.seq = tostring(redis.call("HINCRBY", base .. ":state", "seq", 1))
redis.call("HSET", KEYS[1], "id", id, "status", "pending", "generation", "1", "created_at", rec.created_at, "seq",
  rec.seq, unpack(flat))
redis.call("ZADD", base .. ":jobs", rec.created_at, id)
admit_in_order(base, id, rec, now)
return { "created", "pending", rec.created_at }
