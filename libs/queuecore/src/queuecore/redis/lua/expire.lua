-- expire: the verdict for a job that waited past its deadline, or for too long.
--
-- KEYS[1]  job    hash    the record
-- KEYS[2]  queue  prefix  relay:<model>; the names built from it are those of keys.py
-- ARGV[1]  job_id
-- ARGV[2]  max_age_ms    how long a job may wait
-- ARGV[3]  result_ms
-- ARGV[4]  tombstone_ms
-- ARGV[5]  now           test clock in ms; "" means the server's clock
--
-- Returns  {"expired"}   its verdict is recorded
--          {"kept"}      not waiting, or not due; nothing changed
--          {"gone"}      no record: only the indexes were cleared
--
-- Invariant  A job that somebody runs does not expire.
-- @include record
-- @include place
-- @include wait
-- @include verdict

local id, base = ARGV[1], KEYS[2]
local now, rec = now_ms(ARGV[5]), read_record(KEYS[1])
local late = rec and rec.deadline and tonumber(rec.deadline) <= now
if rec and rec.status == "pending" then
  if not late and since_of(rec) + ARGV[2] > now or lease_is_live(base, id, rec, now) then
    return { "kept" }
  end
end

-- writes
if not rec or rec.status ~= "pending" or is_elsewhere(base, rec) then
  redis.call("ZREM", base .. ":waiting", id)
  redis.call("ZREM", base .. ":deadlines", id)
  return { rec and "kept" or "gone" }
end
verdict(base, id, rec, "expired", { "error_code", late and "deadline_exceeded" or "pending_too_long", "error_message",
  late and "its deadline passed while it waited" or "it waited longer than jobs may" }, now, tonumber(ARGV[3]),
  tonumber(ARGV[4]))
return { "expired" }
