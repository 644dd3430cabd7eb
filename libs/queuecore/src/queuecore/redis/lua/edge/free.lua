-- edge/free: give up a reservation that led to no job.
--
-- KEYS[1]  idem   hash+TTL  see edge/reserve
-- ARGV[1]  token  the one it was reserved with
--
-- Returns  {"freed"}  the key is free
--          {"kept"}   it is not the caller's (any more); nothing changed
--
-- Invariant  An answer stays.

if redis.call("HGET", KEYS[1], "token") ~= ARGV[1] then
  return { "kept" }
end

-- writes
redis.call("DEL", KEYS[1])
return { "freed" }
