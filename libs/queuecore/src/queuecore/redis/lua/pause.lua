-- pause: hide what waits from claims, and from the scaler; of a stream a part, edge/settle does the rest.
--
-- KEYS[1]  queue  prefix  relay:<model>; the names built from it are those of keys.py
-- ARGV[1]  reason        operator or breaker
-- ARGV[2]  cooldown_ms   "" until resume
-- ARGV[3]  now           test clock in ms; "" means the server's clock
--
-- Returns  {"paused"}
--          {"more"}    paused; edge/settle has more to move
--
-- Invariant  Running jobs go on; submissions are accepted and wait; order is kept.
-- @include record
-- @include place
-- @include wait

-- writes
if not pause_queue(KEYS[1], ARGV[1], ARGV[2] ~= "" and now_ms(ARGV[3]) + ARGV[2]) then
  return { "more" }
end
return { "paused" }
