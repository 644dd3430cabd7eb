-- resume: end a pause; of a stream a part comes back, edge/settle brings the rest.
--
-- KEYS[1]  queue  prefix  relay:<model>; the names built from it are those of keys.py
--
-- Returns  {"resumed"}
--          {"more"}     edge/settle has more to move, and nothing can be claimed before
--
-- Invariant  What waited comes back in its order.
-- @include record
-- @include place
-- @include wait

-- writes
if not resume_queue(KEYS[1]) then
  return { "more" }
end
return { "resumed" }
