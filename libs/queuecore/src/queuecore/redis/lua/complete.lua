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
-- Returns  {"completed"} {"cancelled"} {"failed"}  this verdict is recorded; a repeat answers the same
--          {"lost"}   not the current claim, or another verdict was reached: then a duplicate is counted, no more
--
-- Invariant  One verdict per generation (G3). Valid while pending again and unclaimed: the work is valid (G4).
-- @include record
-- @include place
-- @include wait
-- @include verdict

local id, base, foreign = ARGV[1], KEYS[2], ARGV[3] == "foreign"
local rec = read_record(KEYS[1])
if not rec then
  return { "lost" }
end
local word = settled_word(rec, "complete", ARGV[2], ARGV[3])
if word then
  return { word }
end
local late = is_terminal(rec)
if foreign then
  if rec.status == "processing" and rec.claim_id ~= "foreign" then
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
local now, status, fields = now_ms(ARGV[8]), ARGV[4], {}
if rec.cancel_requested == "1" then
  status = "cancelled"
  fields = { "error_code", "cancelled" }
else
  local said = cjson.decode(ARGV[5])
  if said.tokens_used then
    correct_spent(rec, tonumber(said.tokens_used), now)
  end
  for name, value in pairs(said) do
    fields[#fields + 1] = name
    fields[#fields + 1] = value
  end
end
fields[#fields + 1] = "settled"
fields[#fields + 1] = "complete:" .. ARGV[2] .. ":" .. ARGV[3] .. ":" .. status
redis.call("HDEL", base .. ":state", "breaker")
verdict(base, id, rec, status, fields, now, tonumber(ARGV[6]), tonumber(ARGV[7]))
return { status }
