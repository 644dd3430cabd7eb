-- promote: due delayed jobs become pending, and a breaker's pause that is over ends.
--
-- KEYS[1]  queue  prefix  relay:<model>; the names built from it are those of keys.py
-- ARGV[1]  limit         jobs at the most
-- ARGV[2]  now           test clock in ms; "" means the server's clock
--
-- Returns  {"promoted", count, "settled"|"more"}  more: edge/settle is to go on with a pause, or with its end
--
-- Invariant  A delayed job is invisible until it is due; then it goes where its record says.
-- @include record
-- @include place
-- @include wait

local base, now = KEYS[1], now_ms(ARGV[2])
local due = redis.call("ZRANGEBYSCORE", base .. ":delayed", "-inf", ms(now), "LIMIT", 0, ARGV[1])
local over = redis.call("HGET", base .. ":state", "paused_until")

-- writes
if over and tonumber(over) <= now then
  resume_queue(base)
end
local count = 0
for _, id in ipairs(due) do
  redis.call("ZREM", base .. ":delayed", id)
  local rec = read_record("job:" .. id)
  if rec and rec.status == "pending" and not is_elsewhere(base, rec) then
    note_waiting(base, id, rec)
    if rec.return_to == "back" then
      put_back(base, id, rec)
    else
      if rec.return_to == "tail" then
        rec.queued_at = ms(now)
        redis.call("HSET", "job:" .. id, "queued_at", rec.queued_at, "seq", redis.call("HINCRBY", base .. ":state", "seq", 1))
      end
      enter(base, id, rec, rec.return_to == "tail", now)
    end
    redis.call("HDEL", "job:" .. id, "return_to")
    changed(base, id)
    count = count + 1
  end
end
return { "promoted", tostring(count), settle(base) and "settled" or "more" }
