-- resume: end a pause.
--
-- KEYS[1]  queue  prefix  relay:<model>; the names built from it are those of keys.py
--
-- Returns  {"resumed"}
--
-- Invariant  What waited comes back in its order.
-- @include record
-- @include place
-- @include wait

-- writes
resume_queue(KEYS[1])
return { "resumed" }
