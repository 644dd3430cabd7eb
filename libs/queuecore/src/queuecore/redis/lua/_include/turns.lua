-- Tenants of a sorted set take turns (ADR 0008): start-time fair queueing, a claim costs one.
-- <queue>:tenant:<tenant> is a zset id -> score of what could run now or is paused; <queue>:tenants holds the tags of
-- tenants that have such entries, :tenants:idle those of others whose tag is ahead of the clock; the clock is the tag
-- that was served last, `served` in the queue's state. Nothing of it is kept for queues without the setting.

local function turn_keys(base, rec)
  local queue = "queue:" .. string.sub(base, 7)
  return queue .. ":tenants", queue .. ":tenants:idle", queue .. ":tenant:" .. (rec.tenant or "")
end

local function clock_of(base)
  return tonumber(redis.call("HGET", base .. ":state", "served") or "0")
end

-- file(base, id, rec, score): it waits in its tenant's row; a tenant that comes back has saved nothing up.
local function file(base, id, rec, score)
  if not rec.fair then
    return
  end
  local tags, idle, row = turn_keys(base, rec)
  if redis.call("ZADD", row, score, id) == 1 and redis.call("ZCARD", row) == 1 then
    local tenant = rec.tenant or ""
    redis.call("ZADD", tags, math.max(tonumber(redis.call("ZSCORE", idle, tenant) or "0"), clock_of(base)), tenant)
    redis.call("ZREM", idle, tenant)
  end
end

-- unfile(base, id, rec): it waits there no more.
local function unfile(base, id, rec)
  if not rec.fair then
    return
  end
  local tags, idle, row = turn_keys(base, rec)
  if redis.call("ZREM", row, id) == 1 and redis.call("EXISTS", row) == 0 then
    local tenant = rec.tenant or ""
    local tag = tonumber(redis.call("ZSCORE", tags, tenant) or "0")
    redis.call("ZREM", tags, tenant)
    if tag > clock_of(base) then
      redis.call("ZADD", idle, tag, tenant)
    end
  end
end

-- charge(base, rec): its tenant was served.
local function charge(base, rec)
  if not rec.fair then
    return
  end
  local tags, idle = turn_keys(base, rec)
  local tenant = rec.tenant or ""
  local tag = redis.call("ZSCORE", tags, tenant)
  local where = tag and tags or idle
  local start = math.max(tonumber(tag or redis.call("ZSCORE", idle, tenant) or "0"), clock_of(base))
  redis.call("ZADD", where, start + 1, tenant)
  redis.call("HSET", base .. ":state", "served", start)
  redis.call("ZREMRANGEBYSCORE", idle, "-inf", start)
end
