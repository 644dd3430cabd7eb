-- What waits in a sorted set by score: queue:<name>, and relay:<name>:paused while the queue is paused.
-- @include bell

local function zset_of(base)
  return "queue:" .. string.sub(base, 7)
end

-- waiting_key(base): a paused queue keeps its waiting entries where neither a peek nor KEDA sees them.
local function waiting_key(base)
  if redis.call("HEXISTS", base .. ":state", "paused") == 1 then
    return base .. ":paused"
  end
  return zset_of(base)
end

-- is_waiting(base, id): in some structure of those that wait.
local function is_waiting(base, id)
  return redis.call("ZSCORE", base .. ":delayed", id) ~= false
    or redis.call("ZSCORE", zset_of(base), id) ~= false
    or redis.call("ZSCORE", base .. ":paused", id) ~= false
end

-- score_of(rec): its deadline; without one, its rank (submit wrote it) counted from when it began to wait.
local function score_of(rec)
  if rec.rank then
    return tonumber(rec.rank) + (tonumber(rec.queued_at) or count_of(rec, "created_at"))
  end
  return tonumber(rec.deadline) or count_of(rec, "created_at")
end

-- waiting_count(base): what max_pending bounds.
local function waiting_count(base)
  return redis.call("ZCARD", zset_of(base))
    + redis.call("ZCARD", base .. ":paused")
    + redis.call("ZCARD", base .. ":delayed")
    + tonumber(redis.call("HGET", base .. ":state", "ordered") or "0")
end

-- hide_waiting(base), show_waiting(base): a pause and its end, in one step: true; scores are kept.
local function move_all(from, to)
  if redis.call("EXISTS", to) == 1 then
    redis.call("ZUNIONSTORE", to, 2, to, from, "AGGREGATE", "MIN")
    redis.call("DEL", from)
  elseif redis.call("EXISTS", from) == 1 then
    redis.call("RENAME", from, to)
  end
end

local function hide_waiting(base)
  move_all(zset_of(base), base .. ":paused")
  return true
end

local function show_waiting(base)
  move_all(base .. ":paused", zset_of(base))
  for _ = 1, redis.call("ZCARD", zset_of(base) .. ":bell:listeners") do
    ring(zset_of(base) .. ":bell")
  end
  return true
end
