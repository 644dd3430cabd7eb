-- cancel: at once if nobody runs it, else a flag that its owner, or its reaper, will see.
--
-- KEYS[1]  job    hash    the record
-- KEYS[2]  queue  prefix  relay:<model>; the names built from it are those of keys.py
-- ARGV[1]  job_id
-- ARGV[2]  result_ms
-- ARGV[3]  tombstone_ms
-- ARGV[4]  now           test clock in ms; "" means the server's clock
--
-- Returns  {"cancelled", "now"|"before"}  it is cancelled
--          {"processing"}   flagged and signalled; it ends cancelled whatever its owner reports (G8)
--          {"over", status} another verdict was reached; nothing changed
--          {"missing"}      no such record
--
-- Invariant  Once a client was told "cancelled", the job never becomes anything else.
-- @include record
-- @include place
-- @include wait
-- @include verdict

local id, rec = ARGV[1], read_record(KEYS[1])
local base = base_of(KEYS[2], rec)
if not rec then
  return { "missing" }
end
if rec.status == "cancelled" then
  return { "cancelled", "before" }
end
if is_terminal(rec) then
  return { "over", rec.status }
end

-- writes
if rec.status == "processing" then
  if rec.cancel_requested ~= "1" then
    redis.call("HSET", KEYS[1], "cancel_requested", "1")
    changed(base, id)
  end
  redis.call("PUBLISH", base .. ":cancel", cjson.encode({ job_id = id }))
  return { "processing" }
end
verdict(base, id, rec, "cancelled", { "error_code", "cancelled" }, now_ms(ARGV[4]), tonumber(ARGV[2]), tonumber(ARGV[3]))
return { "cancelled", "now" }
