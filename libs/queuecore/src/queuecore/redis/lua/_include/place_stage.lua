-- Where a run of a pipeline's stage stands (seed 004): queue:<stage> by score, or in the hash processing:<stage>.
-- @include waiting_zset

local RECLAIMED_RANK = 10000000 -- the seed's base priority 10, in ms of arrival
local FOREIGN_LEASE_MS = 90000 -- the seed's processing timeout, for workers that are none of ours

local function stage_of(base)
  return string.sub(base, 7)
end

local function processing_of(base)
  return "processing:" .. stage_of(base)
end

-- tracked(base, id): its entry in processing, or nil; a text that is no object counts as a dead worker's.
local function tracked(base, id)
  local text = redis.call("HGET", processing_of(base), id)
  if not text then
    return nil
  end
  local good, entry = pcall(cjson.decode, text)
  return good and type(entry) == "table" and entry or {}
end

-- track(base, id, entry): as the seed writes it, {"worker", "started" in s, "score"}, and whose claim it is.
local function track(base, id, entry)
  redis.call("HSET", processing_of(base), id, cjson.encode(entry))
end

-- is_held(base, id): some worker has fetched the entry.
local function is_held(base, id)
  return redis.call("HEXISTS", processing_of(base), id) == 1
end

-- hold(base, id, rec): take the entry, if a claim may have it: out of the queue and into the hash, its score kept.
local function hold(base, id)
  local score = redis.call("ZSCORE", zset_of(base), id)
  if score then
    redis.call("ZREM", zset_of(base), id)
    local entry = tracked(base, id) or { worker = "", started = "0" }
    entry.score = score
    track(base, id, entry)
  end
  return score ~= false
end

-- lease_end(rec, now, lease_ms, renewing): until when a lease granted now lasts.
local function lease_end(_, now, lease_ms)
  return now + lease_ms
end

-- lease_is_live(base, id, rec, now): our own claims are judged by the record; an entry that is not our claim's belongs
-- to a worker of another make, which has the seed's 90 s from its last heartbeat.
local function lease_is_live(base, id, rec, now)
  if rec.status == "processing" and count_of(rec, "lease_until") > now then
    return true
  end
  local entry = tracked(base, id)
  if not entry or entry.claim == (rec.fence or "") .. ":" .. (rec.claim_id or "") then
    return false
  end
  return (tonumber(entry.started) or 0) * 1000 + FOREIGN_LEASE_MS > now
end

-- set_lease(...): the heartbeat: `started` is the time of the last one. The ZREM comes first, because a full server
-- (maxmemory) refuses a script at its first write that may take memory and lets one finish that began with another.
local function set_lease(base, id, fence, claim_id, lease_ms, ends)
  redis.call("ZREM", base .. ":first-seen", id)
  local entry = tracked(base, id)
  if entry then
    entry.worker = redis.call("HGET", "job:" .. id, "owner") or ""
    entry.started = string.format("%.3f", (ends - lease_ms) / 1000)
    entry.claim = fence .. ":" .. claim_id
    track(base, id, entry)
  end
end

local function drop_lease(base, id)
  redis.call("HDEL", processing_of(base), id)
end

-- leave(base, id, rec): out of every structure. The score it had is remembered in rec for put_back.
local function leave(base, id, rec)
  local entry = tracked(base, id)
  rec.score = entry and entry.score or rec.score
  drop_lease(base, id)
  redis.call("ZREM", zset_of(base), id)
  redis.call("ZREM", base .. ":paused", id)
  redis.call("ZREM", base .. ":delayed", id)
  local gate = gate_of(base, rec)
  if rec.ordering_key and redis.call("LREM", gate .. ":ordered:" .. rec.ordering_key, 0, id) > 0 then
    redis.call("HINCRBY", gate .. ":state", "ordered", -1)
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
  return true
end

local function place(base, id, score)
  redis.call("ZADD", waiting_key(base), score, id)
  if redis.call("HEXISTS", base .. ":state", "paused") == 0 then
    ring(zset_of(base) .. ":bell")
  end
end

-- enter(base, id, rec, at_tail, now): among those that wait, with a fresh score.
local function enter(base, id, rec)
  redis.call("HDEL", "job:" .. id, "reclaimed")
  place(base, id, ms(score_of(rec)))
end

-- put_back(base, id, rec): the score it was claimed with; reclaimed from a dead worker, base priority 10, so that it is
-- tried again promptly (the seed's exception to G5).
local function put_back(base, id, rec)
  if rec.reclaimed_now then
    redis.call("HSET", "job:" .. id, "reclaimed", "1")
    rec.reclaimed, rec.score = "1", nil
  end
  if rec.reclaimed and not rec.score then
    rec.rank = math.min(tonumber(rec.rank) or RECLAIMED_RANK, RECLAIMED_RANK)
  end
  place(base, id, rec.score or ms(score_of(rec)))
end

-- charge(base, rec): its tenant was served; only sorted sets let tenants take turns.
local function charge() end

-- note_failure(base, id): FAIL counts in failed:counts; what is there of a run goes when it needs no operator any more.
local function note_failure(_, id)
  redis.call("HINCRBY", "failed:counts", id, 1)
end

local function forget(_, id)
  redis.call("HDEL", "failed:counts", id)
end

-- note_completed(base): COMPLETE counts the stage's runs.
local function note_completed(base)
  redis.call("INCR", "stats:" .. stage_of(base) .. ":completed")
end

-- note_verdict(base, id, rec, status, payload): what a transport's own readers are told.
local function note_verdict(base, id, _, status)
  if status == "completed" then
    note_completed(base)
  end
  if status ~= "failed" then
    forget(base, id)
  end
end

local function dead_key(base)
  return "deadletter:" .. stage_of(base)
end

-- @include deadletter
