-- reconcile: bring back a live job that stands in no structure, on second sight.
--
-- KEYS[1]  job    hash    the record
-- KEYS[2]  queue  prefix  relay:<model>; the names built from it are those of keys.py
-- ARGV[1]  job_id
-- ARGV[2]  grace_ms      between the two sights
-- ARGV[3]  max_reaps
-- ARGV[4]  result_ms
-- ARGV[5]  deadletter_ms
-- ARGV[6]  tombstone_ms
-- ARGV[7]  now           test clock in ms; "" means the server's clock
--
-- Returns  {"ok"}        it stands where it should, or is terminal or gone
--          {"live"}      in no structure, but its owner is alive
--          {"waiting"}   within its grace
--          {"requeued"} {"deadletter"} {"cancelled"}   see reap
--
-- Invariant  A live job that an operator or a lost step took out of every structure comes back (G1).
-- @include record
-- @include place
-- @include wait
-- @include verdict

local id, base = ARGV[1], KEYS[2]
local now, rec = now_ms(ARGV[7]), read_record(KEYS[1])
local gate = rec and gate_of(base, rec)
local holder = rec and rec.ordering_key and redis.call("HGET", gate .. ":ordering", rec.ordering_key)
local queued_behind = holder and holder ~= id
  and redis.call("LPOS", gate .. ":ordered:" .. rec.ordering_key, id) ~= false
local first = queued_behind and read_record("job:" .. holder)

-- writes
if not rec or is_terminal(rec) or is_elsewhere(base, rec) or is_held(base, id) or is_waiting(base, id)
  or queued_behind and first and not is_terminal(first) then
  redis.call("ZREM", base .. ":missing", id)
  return { "ok" }
end
if lease_is_live(base, id, rec, now) then
  return { "live" }
end
redis.call("ZADD", base .. ":missing", "NX", ms(now), id)
if now - redis.call("ZSCORE", base .. ":missing", id) < tonumber(ARGV[2]) then
  return { "waiting" }
end
if rec.status == "processing" then
  local retention = { result = tonumber(ARGV[4]), deadletter = tonumber(ARGV[5]), tombstone = tonumber(ARGV[6]) }
  return { end_dead_claim(base, id, rec, "lost from the queue", tonumber(ARGV[3]), now, retention, false) }
end
leave(base, id, rec)
if holder and holder ~= id and not queued_behind then
  admit_in_order(base, id, rec, now)
else
  if rec.ordering_key then
    redis.call("HSET", gate .. ":ordering", rec.ordering_key, id)
  end
  note_waiting(base, id, rec)
  put_back(base, id, rec)
end
changed(base, id)
return { "requeued" }
