-- edge/reserve: an idempotency key for one request, or what the key stands for already.
--
-- KEYS[1]  idem  hash+TTL  token of the request being accepted; or job_id and fingerprint once it made a job
-- ARGV[1]  token    random, the caller's; the same one again extends the reservation
-- ARGV[2]  life_ms  a caller that is killed frees the key after this
-- ARGV[3]  job_prefix  job:, of the records' names
--
-- Returns  {"reserved"}                       the key is the caller's
--          {"held"}                           another request has it; nothing changed
--          {"answered", job_id, fingerprint}  its job's record is there; nothing changed
--
-- Invariant  An answer is never given for a job whose record is gone: the key is free then.

local token = redis.call("HGET", KEYS[1], "token")
local job_id = redis.call("HGET", KEYS[1], "job_id")
if job_id and redis.call("EXISTS", ARGV[3] .. job_id) == 1 then
  return { "answered", job_id, redis.call("HGET", KEYS[1], "fingerprint") or "" }
end
if token and token ~= ARGV[1] then
  return { "held" }
end

-- writes
redis.call("DEL", KEYS[1])
redis.call("HSET", KEYS[1], "token", ARGV[1])
redis.call("PEXPIRE", KEYS[1], ARGV[2])
return { "reserved" }
