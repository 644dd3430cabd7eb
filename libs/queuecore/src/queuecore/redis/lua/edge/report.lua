-- edge/report: the newest word of a running job, for whoever watches it. Losing one loses nothing.
--
-- KEYS[1]  job       hash        the record
-- KEYS[2]  queue     prefix      relay:<model>; the names built from it are those of keys.py
-- KEYS[3]  progress  string+TTL  job:<id>:progress: fence, sequence and text, with a blank between two
-- ARGV[1]  job_id
-- ARGV[2]  fence
-- ARGV[3]  claim_id
-- ARGV[4]  sequence  grows within one run
-- ARGV[5]  text
-- ARGV[6]  keep_ms   how long it can be read
--
-- Returns  {"reported"}
--          {"lost"}      not the current claim of a running job; nothing changed
--
-- Invariant  Only the current owner of a running job is heard.
-- @include record

local rec = read_record(KEYS[1])
if not rec or rec.status ~= "processing" or not owns(rec, ARGV[2], ARGV[3]) then
  return { "lost" }
end

-- writes
redis.call("SET", KEYS[3], ARGV[2] .. " " .. ARGV[4] .. " " .. ARGV[5], "PX", ARGV[6])
changed(base_of(KEYS[2], rec), ARGV[1])
return { "reported" }
