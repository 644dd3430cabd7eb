-- Reading a record, the server's clock, and telling listeners.

-- now_ms(override): the server's clock in ms, or the test clock when one is passed (G10).
local function now_ms(override)
  if override ~= "" then
    return tonumber(override)
  end
  local time = redis.call("TIME")
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- ms(number): as text without an exponent; Lua prints 14 digits at the most otherwise.
local function ms(number)
  return string.format("%.0f", number)
end

-- read_record(key): the hash as a table, or nil. Counters of ours are always there; others may be absent.
local function read_record(key)
  local flat = redis.call("HGETALL", key)
  if #flat == 0 then
    return nil
  end
  local rec = {}
  for i = 1, #flat, 2 do
    rec[flat[i]] = flat[i + 1]
  end
  rec.status = rec.status or "pending" -- a damaged record waits rather than vanishes
  return rec
end

local function count_of(rec, field)
  return tonumber(rec[field] or "0") or 0
end

-- is_elsewhere(base, rec): a pipeline's run that another stage has by now: what stands of it here is litter.
local function is_elsewhere(base, rec)
  return rec.plan ~= nil and rec.model ~= nil and "relay:" .. rec.model ~= base
end

-- base_of(base, rec): the queue where it stands now, whichever stage's the caller thought it was.
local function base_of(base, rec)
  return rec and rec.plan and rec.model and "relay:" .. rec.model or base
end

-- gate_of(base, rec): the queue that keeps its ordering key: a run's first.
local function gate_of(base, rec)
  return rec.gate and "relay:" .. rec.gate or base
end

-- since_of(rec): when it began to wait: submitted, redriven, or come to this stage.
local function since_of(rec)
  return tonumber(rec.waiting_since) or count_of(rec, "created_at")
end

local function is_terminal(rec)
  local s = rec.status
  return s == "completed" or s == "failed" or s == "cancelled" or s == "expired"
end

-- owns(rec, fence, claim_id): both are compared, always (G4).
local function owns(rec, fence, claim_id)
  return rec.fence == fence and rec.claim_id == claim_id and claim_id ~= ""
end

-- settled_word(rec, verb, fence, claim_id): what this verb of this claim answered before, or nil (G11).
local function settled_word(rec, verb, fence, claim_id)
  local prefix = verb .. ":" .. fence .. ":" .. claim_id .. ":"
  local settled = rec.settled or ""
  if string.sub(settled, 1, #prefix) == prefix then
    return string.sub(settled, #prefix + 1)
  end
  return nil
end

-- changed(model, id): a wake-up for whoever watches this job; losing it loses nothing.
local function changed(base, id)
  redis.call("PUBLISH", "jobs:" .. string.sub(base, 7) .. ":changed", id)
end

-- count_waiting, count_no_more(base, id, rec): the set of its tenant's pending jobs, kept for those that have a cap. A set
-- and no counter: a script that runs twice, or an older one that knows nothing of it, makes no number drift.
local function tenant_set(base, rec)
  return base .. ":tenant:" .. (rec.tenant or "")
end

local function count_waiting(base, id, rec)
  if rec.capped then
    redis.call("SADD", tenant_set(base, rec), id)
  end
end

local function count_no_more(base, id, rec)
  if rec.capped then
    redis.call("SREM", tenant_set(base, rec), id)
  end
end
