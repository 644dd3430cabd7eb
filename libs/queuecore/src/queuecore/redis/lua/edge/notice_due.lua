-- edge/notice_due: claim attempts whose time has come, fairly over the receivers.
--
-- KEYS[1]  webhooks    prefix  webhooks:; the names built from it are those of keys.py
-- ARGV[1]  token       random, the caller's
-- ARGV[2]  limit       attempts in all
-- ARGV[3]  per_target  attempts of one receiver
-- ARGV[4]  skip        JSON list of receivers that have enough to do
-- ARGV[5]  lease_ms    a caller that is killed gives them back after this
-- ARGV[6]  now         test clock in ms; "" means the server's clock
--
-- Returns  {"due", now, event id, ...}  each now carries the token, and its attempts are one more
--
-- Invariant  A claimed attempt stays due, one lease later: it is never lost.
-- @include record
-- @include notice

-- writes
local now, base = now_ms(ARGV[6]), KEYS[1]
local skipped = {}
for _, target in ipairs(cjson.decode(ARGV[4])) do
  skipped[target] = true
end
local found, left = { "due", ms(now) }, tonumber(ARGV[2])
for _, target in ipairs(redis.call("ZRANGE", base .. "targets", "-inf", ms(now), "BYSCORE", "LIMIT", 0, 1000)) do
  if left > 0 and not skipped[target] then
    local due, most = base .. "due:" .. target, math.min(left, tonumber(ARGV[3]))
    for _, id in ipairs(redis.call("ZRANGE", due, "-inf", ms(now), "BYSCORE", "LIMIT", 0, most)) do
      local key = "webhook:" .. id
      if redis.call("HGET", key, "status") == "pending" then
        redis.call("ZADD", due, ms(now + ARGV[5]), id)
        redis.call("HSET", key, "token", ARGV[1], "next_at", ms(now + ARGV[5]))
        redis.call("HINCRBY", key, "attempts", 1)
        found[#found + 1] = id
        left = left - 1
      else
        redis.call("ZREM", due, id)
      end
    end
    refresh_target(base, target)
  end
end
return found
