-- renew: extend the lease of a current claim and register its owner's connection.
--
-- KEYS[1]  job    hash    the record
-- KEYS[2]  queue  prefix  relay:<model>; the names built from it are those of keys.py
-- ARGV[1]  job_id
-- ARGV[2]  fence
-- ARGV[3]  claim_id
-- ARGV[4]  lease_ms
-- ARGV[5]  owner_client   <run_id>:<client id>; "" keeps the registered one
-- ARGV[6]  now            test clock in ms; "" means the server's clock
--
-- Returns  {"renewed", "0"|"1"}  the second word: was cancel requested
--          {"lost"}              not the current claim of a running job; nothing changed
--
-- Invariant  Only the current owner of a running job extends its lease; a lapsed lease nobody reaped revives.
-- @include record
-- @include place
-- @include slots

local id, rec = ARGV[1], read_record(KEYS[1])
if not rec or rec.status ~= "processing" or not owns(rec, ARGV[2], ARGV[3]) then
  return { "lost" }
end

-- writes
local now = now_ms(ARGV[6])
local ends = lease_end(rec, now, ARGV[4], true)
set_lease(base_of(KEYS[2], rec), id, ARGV[2], ARGV[3], ends - now, ends)
keep_slots(id, rec, ends)
redis.call("HSET", KEYS[1], "lease_until", ms(ends))
if ARGV[5] ~= "" then
  redis.call("HSET", KEYS[1], "owner_client", ARGV[5])
end
return { "renewed", rec.cancel_requested or "0" }
