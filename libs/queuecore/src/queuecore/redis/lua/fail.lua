-- fail: the current owner could not do the job: final, or once more later.
--
-- KEYS[1]  job    hash    the record
-- KEYS[2]  queue  prefix  relay:<model>; the names built from it are those of keys.py
-- ARGV[1]  job_id
-- ARGV[2]  fence
-- ARGV[3]  claim_id
-- ARGV[4]  retry_in_ms       "" is final
-- ARGV[5]  fields            JSON object: error_code, error_message, http_status as strings
-- ARGV[6]  breaker_failures  infrastructure failures in a row that pause the queue; "0": this is none
-- ARGV[7]  cooldown_ms       how long it pauses
-- ARGV[8]  result_ms
-- ARGV[9]  deadletter_ms
-- ARGV[10] tombstone_ms
-- ARGV[11] now               test clock in ms; "" means the server's clock
--
-- Returns  {"failed"} {"cancelled"}  this verdict is recorded
--          {"pending"}               it waits for its retry
--          {"lost"}                  not the current claim of a running job; nothing changed
--          A repeat answers the same.
--
-- Invariant  A retry counts as a failure and never outlives the deadline. A pipeline's run that fails for good is a dead
--            letter of its stage.
-- @include record
-- @include place
-- @include wait
-- @include verdict

local id, rec = ARGV[1], read_record(KEYS[1])
local base = base_of(KEYS[2], rec)
if not rec then
  return { "lost" }
end
local word = settled_word(rec, "fail", ARGV[2], ARGV[3])
if word then
  return { word }
end
if rec.status ~= "processing" or not owns(rec, ARGV[2], ARGV[3]) then
  return { "lost" }
end

-- writes
local now, settled = now_ms(ARGV[11]), "fail:" .. ARGV[2] .. ":" .. ARGV[3] .. ":"
local retention = { result = tonumber(ARGV[8]), deadletter = tonumber(ARGV[9]), tombstone = tonumber(ARGV[10]) }
local failures = count_of(rec, "failures") + 1
drop_lease(base, id) -- first: see set_lease
note_failure(base, id)
redis.call("HSET", KEYS[1], "failures", failures)
if ARGV[6] == "0" then
  redis.call("HDEL", base .. ":state", "breaker")
elseif redis.call("HINCRBY", base .. ":state", "breaker", 1) >= tonumber(ARGV[6]) then
  redis.call("HDEL", base .. ":state", "breaker")
  pause_queue(base, "breaker", now + ARGV[7])
end
if rec.cancel_requested == "1" then
  verdict(base, id, rec, "cancelled", { "error_code", "cancelled", "settled", settled .. "cancelled" }, now,
    retention.result, retention.tombstone)
  return { "cancelled" }
end
local fields = { "settled", settled .. "failed" }
for name, value in pairs(cjson.decode(ARGV[5])) do
  fields[#fields + 1] = name
  fields[#fields + 1] = value
end
local due = ARGV[4] ~= "" and now + ARGV[4]
if due and not (rec.deadline and tonumber(rec.deadline) <= due) then
  free_slots(id, rec, now)
  leave(base, id, rec)
  await_again(base, id, rec)
  fields[2] = settled .. "pending"
  redis.call("HSET", KEYS[1], unpack(fields))
  delay(base, id, rec, due, "tail")
  changed(base, id)
  return { "pending" }
end
fail_for_good(base, id, rec, fields, now, retention)
return { "failed" }
