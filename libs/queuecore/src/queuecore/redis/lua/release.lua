-- release: give a job back to its old place, uncounted.
--
-- KEYS[1]  job    hash    the record
-- KEYS[2]  queue  prefix  relay:<model>; the names built from it are those of keys.py
-- ARGV[1]  job_id
-- ARGV[2]  fence         "" for an entry that was popped and never claimed
-- ARGV[3]  claim_id      "" likewise
-- ARGV[4]  result_ms
-- ARGV[5]  tombstone_ms
-- ARGV[6]  now           test clock in ms; "" means the server's clock
--
-- Returns  {"pending"}    it waits again, at the head (G5)
--          {"cancelled"}  that was requested meanwhile
--          {"lost"}       not the current claim of a running job, or no unclaimed entry; nothing changed
--          A repeat answers the same.
--
-- Invariant  No counter changes (G7).
-- @include record
-- @include place
-- @include wait
-- @include verdict

local id, rec = ARGV[1], read_record(KEYS[1])
local base = ARGV[3] == "" and KEYS[2] or base_of(KEYS[2], rec)
if not rec then
  return { "lost" }
end
local now = now_ms(ARGV[6])
if ARGV[3] == "" then
  if rec.status ~= "pending" or is_elsewhere(base, rec) or not is_held(base, id) or lease_is_live(base, id, rec, now) then
    return { "lost" }
  end
else
  local word = settled_word(rec, "release", ARGV[2], ARGV[3])
  if word then
    return { word }
  end
  if rec.status ~= "processing" or not owns(rec, ARGV[2], ARGV[3]) then
    return { "lost" }
  end
end

-- writes
local settled = "release:" .. ARGV[2] .. ":" .. ARGV[3] .. ":"
if rec.cancel_requested == "1" then
  verdict(base, id, rec, "cancelled", { "error_code", "cancelled", "settled", settled .. "cancelled" }, now,
    tonumber(ARGV[4]), tonumber(ARGV[5]))
  return { "cancelled" }
end
requeue(base, id, rec, now)
if ARGV[3] ~= "" then
  redis.call("HSET", KEYS[1], "settled", settled .. "pending")
end
return { "pending" }
