-- Results that are used again (ADR 0009): cache:<endpoint_hash>:<params_hash> names the job whose result answers such a
-- request. From submission to verdict it does not expire, so that whoever asks meanwhile shares the one run.

-- reusable(key, keep_ms, fresh, clock): the job that answers such a request; nil when it has to run.
local function reusable(key, keep_ms, fresh, clock)
  local id = keep_ms ~= "" and fresh ~= "1" and redis.call("GET", key)
  local row = id and redis.call("HMGET", "job:" .. id, "status", "finished_at", "cancel_requested")
  if not row or not row[1] or row[3] == "1" then
    return nil
  end
  if row[1] == "completed" and tonumber(row[2]) + tonumber(keep_ms) <= now_ms(clock) then
    return nil
  end
  return id
end

-- answer_with(key, keep_ms, id, rec): from now on this job does.
local function answer_with(key, keep_ms, id, rec)
  if keep_ms ~= "" then
    rec.cache_key, rec.cache_ms = key, keep_ms
    redis.call("SET", key, id)
  end
end

-- settle_reuse(id, rec, status): a result is kept for a while, anything else not at all; who runs it anew keeps the name.
local function settle_reuse(id, rec, status)
  if not rec.cache_key or redis.call("GET", rec.cache_key) ~= id then
    return
  end
  if status == "completed" then
    redis.call("PEXPIRE", rec.cache_key, rec.cache_ms)
  else
    redis.call("DEL", rec.cache_key)
  end
end
