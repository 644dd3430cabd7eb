-- Where a job of the list transport stands. Every transport has these functions under the same names (docs/transports.md).

-- waiting_key(base): a paused queue keeps its waiting entries where neither a pop nor KEDA sees them.
local function waiting_key(base)
  if redis.call("HEXISTS", base .. ":state", "paused") == 1 then
    return base .. ":paused"
  end
  return base .. ":pending"
end

-- is_held(base, id): some relay has moved the entry.
local function is_held(base, id)
  return redis.call("LPOS", base .. ":processing", id) ~= false
end

-- hold(base, id, rec): take the entry, if a claim may have it. BLMOVE has taken it before.
local function hold(base, id)
  return is_held(base, id)
end

-- lease_end(rec, now, lease_ms, renewing): until when a lease granted now lasts.
local function lease_end(_, now, lease_ms)
  return now + lease_ms
end

-- lease_is_live(base, id, rec, now): our own claims are judged by the record, so that a late DEL of a foreign
-- relay cannot revoke them; a lease value that is not our claim's belongs to a foreign relay.
local function lease_is_live(base, id, rec, now)
  if rec.status == "processing" and count_of(rec, "lease_until") > now then
    return true
  end
  local value = redis.call("GET", base .. ":lease:" .. id)
  return value ~= false and value ~= (rec.fence or "") .. ":" .. (rec.claim_id or "")
end

-- set_lease(...): the ZREM comes first, because a full server (maxmemory) refuses a script at its first write that may
-- take memory and lets one finish that began with another: owners and verdicts have to get through.
local function set_lease(base, id, fence, claim_id, lease_ms)
  redis.call("ZREM", base .. ":first-seen", id)
  redis.call("SET", base .. ":lease:" .. id, fence .. ":" .. claim_id, "PX", lease_ms)
end

local function drop_lease(base, id)
  redis.call("DEL", base .. ":lease:" .. id)
end

-- leave(base, id, rec): out of every structure. A running job stands in processing only, unless an operator or a
-- lapsed lease moved it: the long lists are searched in that case alone.
local function leave(base, id, rec)
  drop_lease(base, id)
  local held = redis.call("LREM", base .. ":processing", 0, id)
  if held == 0 or rec.status ~= "processing" then
    redis.call("LREM", base .. ":pending", 0, id)
    redis.call("LREM", base .. ":paused", 0, id)
    redis.call("ZREM", base .. ":delayed", id)
  end
  if rec.ordering_key and redis.call("LREM", base .. ":ordered:" .. rec.ordering_key, 0, id) > 0 then
    redis.call("HINCRBY", base .. ":state", "ordered", -1)
  end
  redis.call("ZREM", base .. ":first-seen", id)
  redis.call("ZREM", base .. ":missing", id)
  redis.call("ZREM", base .. ":waiting", id)
  redis.call("ZREM", base .. ":deadlines", id)
end

-- unhold(base, id, rec): no longer running; put_back follows.
local function unhold(base, id, rec)
  leave(base, id, rec)
end

-- put_aside(base, id, rec): refused by a gate. A popped entry has left its place: false, it waits in delayed.
local function put_aside(base, id, rec)
  leave(base, id, rec)
  return false
end

-- is_waiting(base, id): in some structure of those that wait (reconcile and nobody else may ask: it is O(n)).
local function is_waiting(base, id)
  return redis.call("ZSCORE", base .. ":delayed", id) ~= false
    or redis.call("LPOS", base .. ":pending", id) ~= false
    or redis.call("LPOS", base .. ":paused", id) ~= false
end

-- enter(base, id, rec, at_tail, now): among those that wait; priority at the head, unless it comes back from a retry.
local function enter(base, id, rec, at_tail)
  if rec.priority == "true" and not at_tail then
    redis.call("LPUSH", waiting_key(base), id)
  else
    redis.call("RPUSH", waiting_key(base), id)
  end
end

-- put_back(base, id, rec): to the head, behind those that came back before and are older (G5).
local function put_back(base, id, rec)
  local list, at = waiting_key(base), 0
  while at < 1000 do
    local other = redis.call("LINDEX", list, at)
    if not other then
      break
    end
    local seen = redis.call("HMGET", "job:" .. other, "returned", "seq")
    if seen[1] ~= "1" or tonumber(seen[2] or "0") > count_of(rec, "seq") then
      break
    end
    at = at + 1
  end
  local pivot = at > 0 and redis.call("LINDEX", list, at)
  if at == 0 then
    redis.call("LPUSH", list, id)
  elseif pivot then
    redis.call("LINSERT", list, "BEFORE", pivot, id)
  else
    redis.call("RPUSH", list, id)
  end
  redis.call("HSET", "job:" .. id, "returned", "1")
end

-- waiting_count(base): what max_pending bounds.
local function waiting_count(base)
  return redis.call("LLEN", base .. ":pending")
    + redis.call("LLEN", base .. ":paused")
    + redis.call("ZCARD", base .. ":delayed")
    + tonumber(redis.call("HGET", base .. ":state", "ordered") or "0")
end

-- hide_waiting(base), show_waiting(base): a pause and its end, in one step: true. What an operator put into pending
-- meanwhile is ahead.
local function hide_waiting(base)
  if redis.call("EXISTS", base .. ":paused") == 0 then
    if redis.call("EXISTS", base .. ":pending") == 1 then
      redis.call("RENAME", base .. ":pending", base .. ":paused")
    end
    return true
  end
  while redis.call("LMOVE", base .. ":pending", base .. ":paused", "RIGHT", "LEFT") do
  end
  return true
end

local function show_waiting(base)
  if redis.call("EXISTS", base .. ":paused") == 1 then
    hide_waiting(base)
    redis.call("RENAME", base .. ":paused", base .. ":pending")
  end
  return true
end

-- charge(base, rec): its tenant was served; only sorted sets let tenants take turns.
local function charge() end

-- note_verdict(base, id, rec, status, payload): what a transport's own readers are told; lists have none.
local function note_verdict() end

-- note_failure, note_completed, forget: seed 004 counts these; only stages do.
local function note_failure() end
local function note_completed() end
local function forget() end

local function dead_key(base)
  return base .. ":deadletter"
end

-- @include deadletter
