-- Becoming pending, in whichever of the waiting structures applies.
-- @include slots

-- note_waiting(base, id, rec): the two indexes of waiting jobs.
local function note_waiting(base, id, rec)
  redis.call("ZADD", base .. ":waiting", ms(since_of(rec)), id)
  if rec.deadline then
    redis.call("ZADD", base .. ":deadlines", rec.deadline, id)
  end
end

-- delay(base, id, rec, due, return_to): invisible until due; return_to back|tail|entry says where it goes then.
local function delay(base, id, rec, due, return_to)
  redis.call("ZADD", base .. ":delayed", ms(due), id)
  redis.call("ZREM", base .. ":waiting", id) -- it may have waited behind its ordering key
  redis.call("HSET", "job:" .. id, "return_to", return_to)
  if rec.deadline then
    redis.call("ZADD", base .. ":deadlines", rec.deadline, id)
  end
end

-- admit(base, id, rec, now): a job of whom nothing stands in any structure enters the queue.
local function admit(base, id, rec, now)
  if count_of(rec, "not_before") > now then
    delay(base, id, rec, count_of(rec, "not_before"), "entry")
  else
    note_waiting(base, id, rec)
    enter(base, id, rec, false, now)
  end
end

-- admit_in_order(base, id, rec, now): the same behind the gate of its ordering key.
local function admit_in_order(base, id, rec, now)
  local key = rec.ordering_key
  if key then
    local gate = gate_of(base, rec)
    local holder = redis.call("HGET", gate .. ":ordering", key)
    if holder and holder ~= id then
      redis.call("RPUSH", gate .. ":ordered:" .. key, id)
      redis.call("HINCRBY", gate .. ":state", "ordered", 1)
      note_waiting(base, id, rec)
      return
    end
    redis.call("HSET", gate .. ":ordering", key, id)
  end
  admit(base, id, rec, now)
end

-- let_next_in(base, id, rec, now): the key's next job, once this one reached its verdict, of whatever kind.
local function let_next_in(base, id, rec, now)
  local key = rec.ordering_key
  local gate = gate_of(base, rec)
  if not key or redis.call("HGET", gate .. ":ordering", key) ~= id then
    return
  end
  redis.call("HDEL", gate .. ":ordering", key)
  for _ = 1, 1000 do
    local after = redis.call("LPOP", gate .. ":ordered:" .. key)
    if not after then
      return
    end
    redis.call("HINCRBY", gate .. ":state", "ordered", -1)
    local waiting = read_record("job:" .. after)
    if waiting and waiting.status == "pending" then
      redis.call("HSET", gate .. ":ordering", key, after)
      admit(base_of(gate, waiting), after, waiting, now)
      return
    end
  end
end

-- await_again(base, id, rec): no longer claimed; the fence and claim_id stay, so that valid work can still complete.
local function await_again(base, id, rec)
  redis.call("HSET", "job:" .. id, "status", "pending")
  redis.call("HDEL", "job:" .. id, "lease_until", "execute_until", "owner", "owner_client", "started_at")
  rec.status = "pending"
  count_waiting(base, id, rec)
end

-- requeue(base, id, rec, now): back where it was. Its slots are free before anybody can see it.
local function requeue(base, id, rec, now)
  free_slots(id, rec, now)
  unhold(base, id, rec)
  await_again(base, id, rec)
  note_waiting(base, id, rec)
  put_back(base, id, rec)
  changed(base, id)
end

-- settle(base): move waiting jobs to where a pause, or its end, wants them, MOVED_AT_ONCE at the most; false when more
-- are left for edge/settle. A move that has begun is finished before one in the other direction begins: order is kept.
local MOVED_AT_ONCE = 200
local function settle(base)
  local state = base .. ":state"
  local moving = redis.call("HGET", state, "moving")
  if not moving then
    return true
  end
  local move = moving == "hide" and hide_waiting or show_waiting
  if not move(base, MOVED_AT_ONCE) then
    return false
  end
  local wanted = redis.call("HEXISTS", state, "paused") == 1 and "hide" or "show"
  if moving == wanted then
    redis.call("HDEL", state, "moving")
    return true
  end
  redis.call("HSET", state, "moving", wanted)
  return false
end

-- pause_queue(base, reason, until_ms): hide what waits; an operator's pause outlives a breaker's. As settle.
local function pause_queue(base, reason, until_ms)
  local state = base .. ":state"
  if redis.call("HGET", state, "paused") == "operator" and reason ~= "operator" then
    return true
  end
  redis.call("HSET", state, "paused", reason)
  if until_ms then
    redis.call("HSET", state, "paused_until", ms(until_ms))
  else
    redis.call("HDEL", state, "paused_until")
  end
  redis.call("HSETNX", state, "moving", "hide")
  return settle(base)
end

-- resume_queue(base): what waited can run again, once all of it is back. As settle.
local function resume_queue(base)
  redis.call("HDEL", base .. ":state", "paused", "paused_until", "breaker")
  redis.call("HSETNX", base .. ":state", "moving", "show")
  return settle(base)
end
