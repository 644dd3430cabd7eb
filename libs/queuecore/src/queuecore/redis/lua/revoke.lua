-- revoke: end a job that runs past its limit, although its owner's lease lives.
--
-- KEYS[1]  job    hash    the record
-- KEYS[2]  queue  prefix  relay:<model>; the names built from it are those of keys.py
-- ARGV[1]  job_id
-- ARGV[2]  grace_ms      the owner enforces the limit itself; this long it may take
-- ARGV[3]  result_ms
-- ARGV[4]  deadletter_ms
-- ARGV[5]  tombstone_ms
-- ARGV[6]  now           test clock in ms; "" means the server's clock
--
-- Returns  {"revoked"}   failed, execution_timeout (or cancelled, if that was requested); the claim is void
--          {"kept"}      not running, or not late; nothing changed
--
-- Invariant  No job runs for ever, however healthy its heartbeat.
-- @include record
-- @include place
-- @include wait
-- @include verdict

local id, base = ARGV[1], KEYS[2]
local now, rec = now_ms(ARGV[6]), read_record(KEYS[1])
if not rec or rec.status ~= "processing" or is_elsewhere(base, rec) or not rec.execute_until
  or tonumber(rec.execute_until) + ARGV[2] > now then
  return { "kept" }
end

-- writes
local fields = { "fence", ms(count_of(rec, "fence") + 1), "error_code", "execution_timeout", "error_message",
  "it ran longer than its limit and its worker did not stop it" }
local retention = { result = tonumber(ARGV[3]), deadletter = tonumber(ARGV[4]), tombstone = tonumber(ARGV[5]) }
if rec.cancel_requested == "1" then
  fields[4], fields[6] = "cancelled", ""
  verdict(base, id, rec, "cancelled", fields, now, retention.result, retention.tombstone)
else
  fail_for_good(base, id, rec, fields, now, retention)
end
redis.call("PUBLISH", base .. ":cancel", cjson.encode({ job_id = id }))
return { "revoked" }
