-- edge/settle: go on with a pause, or with its end, that one script alone would have held the server too long for.
--
-- KEYS[1]  queue  prefix  relay:<model>; the names built from it are those of keys.py
--
-- Returns  {"settled"}  all that waits stands where it should
--          {"more"}     once more, please
--
-- Invariant  Its commands are bounded, however many wait; it decides nothing: the queue's state does.
-- @include record
-- @include place
-- @include wait

-- writes
if settle(KEYS[1]) then
  return { "settled" }
end
return { "more" }
