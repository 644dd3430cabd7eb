-- Where a job of the sorted-set transport stands (seed 002): queue:<n> by score, or in the claim's three registers.
-- @include waiting_zset
-- @include turns

-- is_held(base, id): some relay has claimed the entry.
local function is_held(base, id)
  return redis.call("ZSCORE", zset_of(base) .. ":claims-idx", id) ~= false
end

-- hold(base, id, rec): take the entry, if a claim may have it: out of the queue and into the registers, its score kept.
local function hold(base, id, rec)
  local queue = zset_of(base)
  local score = redis.call("ZSCORE", queue, id)
  if score then
    redis.call("ZREM", queue, id)
    redis.call("HSET", queue .. ":claimed", id, id, id .. ":score", score)
    redis.call("ZADD", queue .. ":claims-idx", "NX", rec.lease_until or "0", id)
    unfile(base, id, rec)
  end
  return score ~= false
end

-- lease_end(rec, now, lease_ms, renewing): not past the deadline by more than 30 s, and never lapsed already.
local function lease_end(rec, now, lease_ms, renewing)
  local ends, deadline = now + lease_ms, tonumber(rec.deadline)
  if deadline and deadline + 30000 < ends then
    ends = math.max(deadline + 30000, renewing and math.min(now + 45000, ends) or 0)
  end
  return ends
end

-- lease_is_live(base, id, rec, now): our own claims are judged by the record; a token that is not our claim's belongs
-- to a relay of another make.
local function lease_is_live(base, id, rec, now)
  if rec.status == "processing" and count_of(rec, "lease_until") > now then
    return true
  end
  local queue = zset_of(base)
  local token = redis.call("HGET", queue .. ":claim-owners", id)
  if not token or token == (rec.fence or "") .. ":" .. (rec.claim_id or "") then
    return false
  end
  return tonumber(redis.call("ZSCORE", queue .. ":claims-idx", id) or "0") > now
end

-- set_lease(...): the ZREM comes first, because a full server (maxmemory) refuses a script at its first write that may
-- take memory and lets one finish that began with another: owners and verdicts have to get through.
local function set_lease(base, id, fence, claim_id, _, ends)
  redis.call("ZREM", base .. ":first-seen", id)
  redis.call("HSET", zset_of(base) .. ":claim-owners", id, fence .. ":" .. claim_id)
  redis.call("ZADD", zset_of(base) .. ":claims-idx", "XX", ms(ends), id)
end

local function drop_lease(base, id)
  redis.call("HDEL", zset_of(base) .. ":claim-owners", id)
end

-- leave(base, id, rec): out of every structure. The score it had is remembered in rec for put_back.
local function leave(base, id, rec)
  local queue = zset_of(base)
  drop_lease(base, id)
  rec.score = redis.call("HGET", queue .. ":claimed", id .. ":score") or rec.score
  redis.call("HDEL", queue .. ":claimed", id, id .. ":score")
  redis.call("ZREM", queue .. ":claims-idx", id)
  redis.call("ZREM", queue, id)
  redis.call("ZREM", base .. ":paused", id)
  unfile(base, id, rec)
  redis.call("ZREM", base .. ":delayed", id)
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

-- put_aside(base, id, rec): refused by a gate: true, it stands where it stood, and nobody is woken for it.
local function put_aside(base, id, rec)
  leave(base, id, rec)
  redis.call("ZADD", waiting_key(base), rec.score, id)
  file(base, id, rec, rec.score)
  return true
end

local function place(base, id, rec, score)
  redis.call("ZADD", waiting_key(base), score, id)
  file(base, id, rec, score)
  if redis.call("HEXISTS", base .. ":state", "paused") == 0 then
    ring(zset_of(base) .. ":bell")
  end
end

-- enter(base, id, rec, at_tail, now): among those that wait, by score. Ids are time-ordered, so ties sort by age.
local function enter(base, id, rec)
  place(base, id, rec, ms(score_of(rec)))
end

-- put_back(base, id, rec): where it was (G5): the score it was claimed with.
local function put_back(base, id, rec)
  place(base, id, rec, rec.score or ms(score_of(rec)))
end

-- note_verdict(base, id, rec, status, payload): the duplicate marker of this generation, and the result list if wanted.
local function note_verdict(base, id, rec, status, payload)
  redis.call("SET", "result-terminal:" .. id .. ":" .. (rec.generation or "1"), status, "PX", rec.dedup_ms or "21600000")
  if rec.result_list == "1" then
    redis.call("RPUSH", "results:" .. string.sub(base, 7), payload)
    redis.call("LTRIM", "results:" .. string.sub(base, 7), -100000, -1)
  end
end

-- note_failure, note_completed, forget: seed 004 counts these; only stages do.
local function note_failure() end
local function note_completed() end
local function forget() end

local function dead_key(base)
  return base .. ":deadletter"
end

-- @include deadletter
