-- sweep: remove a queue entry whose record is gone or terminal.
--
-- KEYS[1]  job    hash    the record
-- KEYS[2]  queue  prefix  relay:<model>; the names built from it are those of keys.py
-- ARGV[1]  job_id
--
-- Returns  {"swept"}  the entry was removed
--          {"kept"}   the job lives; nothing changed
--
-- Invariant  An entry without a live record never blocks a queue or its scaler.
-- @include record
-- @include place

local rec = read_record(KEYS[1])
if rec and not is_terminal(rec) then
  return { "kept" }
end

-- writes
leave(KEYS[2], ARGV[1], rec or { status = "gone" })
if not rec then
  redis.call("ZREM", KEYS[2] .. ":jobs", ARGV[1])
  forget(KEYS[2], ARGV[1])
end
return { "swept" }
