-- purge: the verdict cancelled for one waiting job, because an operator empties the queue.
--
-- KEYS[1]  job    hash    the record
-- KEYS[2]  queue  prefix  relay:<model>; the names built from it are those of keys.py
-- ARGV[1]  job_id
-- ARGV[2]  result_ms
-- ARGV[3]  tombstone_ms
-- ARGV[4]  now           test clock in ms; "" means the server's clock
--
-- Returns  {"purged"}   its verdict is recorded with the code purged
--          {"kept"}     it does not wait (any more); nothing changed
--
-- Invariant  A running job is never purged.
-- @include record
-- @include place
-- @include wait
-- @include verdict

local rec = read_record(KEYS[1])
if not rec or rec.status ~= "pending" or is_elsewhere(KEYS[2], rec) then
  return { "kept" }
end

-- writes
verdict(KEYS[2], ARGV[1], rec, "cancelled", { "error_code", "purged", "error_message", "an operator emptied the queue" },
  now_ms(ARGV[4]), tonumber(ARGV[2]), tonumber(ARGV[3]))
return { "purged" }
