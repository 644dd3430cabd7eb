-- complete: the verdict of the current owner, or of a seed-protocol relay.
--
-- KEYS[1]  job    hash    the record
-- KEYS[2]  queue  prefix  relay:<model>; the names built from it are those of keys.py
-- ARGV[1]  job_id
-- ARGV[2]  fence          "" for a foreign relay, which has none
-- ARGV[3]  claim_id       "foreign" for a foreign relay
-- ARGV[4]  status         completed; a foreign relay may also say failed or cancelled
-- ARGV[5]  fields         JSON object of result fields, all strings
-- ARGV[6]  result_ms
-- ARGV[7]  tombstone_ms
-- ARGV[8]  now            test clock in ms; "" means the server's clock
--
-- Returns  {"pending"}   a pipeline's run stands in its next stage now; a repeat answers the same
--          {"completed"} {"cancelled"} {"failed"}  this verdict is recorded; a repeat answers the same
--          {"lost"}   not the current claim, or another verdict was reached: then a duplicate is counted, no more;
--             a foreign relay is refused at a stage that has a successor: it names no input for it
--
-- Invariant  One verdict per generation (G3). Valid while pending again and unclaimed: the work is valid (G4).
-- @include record
-- @include place
-- @include wait
-- @include verdict
-- @include stages

local id, foreign, rec = ARGV[1], ARGV[3] == "foreign", read_record(KEYS[1])
local base = base_of(KEYS[2], rec)
if not rec then
  return { "lost" }
end
local word = settled_word(rec, "complete", ARGV[2], ARGV[3])
if word then
  return { word }
end
if has_advanced(rec, ARGV[2], ARGV[3]) then
  return { "pending" }
end
local late = is_terminal(rec)
if foreign then
  if rec.status == "processing" and rec.claim_id ~= "foreign" or next_step(rec) then
    return { "lost" }
  end
elseif not late and not owns(rec, ARGV[2], ARGV[3]) then
  return { "lost" }
end

-- writes
if late then
  redis.call("HINCRBY", base .. ":state", "duplicates", 1)
  return { "lost" }
end
redis.call("HDEL", base .. ":state", "breaker") -- first: see set_lease
local now, status, said, fields = now_ms(ARGV[8]), ARGV[4], cjson.decode(ARGV[5]), {}
if rec.cancel_requested == "1" then
  status, said = "cancelled", { error_code = "cancelled" }
elseif said.tokens_used then
  correct_spent(rec, tonumber(said.tokens_used), now)
end
local step = status == "completed" and next_step(rec)
if step then
  advance(base, id, rec, step, said, ARGV[2] .. ":" .. ARGV[3], now)
  return { "pending" }
end
for name, value in pairs(said) do
  fields[#fields + 1] = name
  fields[#fields + 1] = value
end
fields[#fields + 1] = "settled"
fields[#fields + 1] = "complete:" .. ARGV[2] .. ":" .. ARGV[3] .. ":" .. status
verdict(base, id, rec, status, fields, now, tonumber(ARGV[6]), tonumber(ARGV[7]))
return { status }
