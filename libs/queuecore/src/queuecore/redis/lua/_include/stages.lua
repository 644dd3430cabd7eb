-- A pipeline's run goes from stage to stage; its plan was fixed when it was submitted.

-- next_step(rec): what comes after the stage where it stands; nil at the end, and for a job that is no run.
local function next_step(rec)
  if not rec.plan then
    return nil
  end
  local steps = cjson.decode(rec.plan)
  for at, step in ipairs(steps) do
    if step.stage == rec.model then
      return steps[at + 1]
    end
  end
  return nil
end

local function claim_mark(fence, claim_id)
  return cjson.encode({ claim = fence .. ":" .. claim_id })
end

-- has_advanced(rec, fence, claim_id): whether this claim completed one of the stages behind it (G11).
local function has_advanced(rec, fence, claim_id)
  local mark = string.sub(claim_mark(fence, claim_id), 2, -2)
  return rec.history ~= nil and string.find(rec.history, mark, 1, true) ~= nil
end

-- advance(base, id, rec, step, result, mark, now): out of this stage and into the next, its counters fresh, its input
-- what this stage produced; the key's gate stays with the first stage until the run's end.
local function advance(base, id, rec, step, result, mark, now)
  local key, after = "job:" .. id, "relay:" .. step.stage
  free_slots(id, rec, now)
  leave(base, id, rec)
  count_no_more(base, id, rec)
  redis.call("ZREM", base .. ":jobs", id)
  note_completed(base)
  local past = cjson.encode({
    stage = rec.model, queued_at = rec.waiting_since or rec.created_at or "0", started_at = rec.started_at or "0",
    finished_at = ms(now), attempts = rec.claims or "0", reaps = rec.reaps or "0", failures = rec.failures or "0",
    result_key = result.result_key, result_size = result.result_size, claim = mark,
  })
  local before = rec.history and string.sub(rec.history, 1, -2) .. "," or "["
  rec.gate, rec.model = rec.gate or rec.model, step.stage
  rec.status, rec.waiting_since, rec.queued_at, rec.reclaimed = "pending", ms(now), ms(now), nil
  redis.call("HDEL", key, "claim_id", "owner", "owner_client", "started_at", "lease_until", "execute_until", "return_to",
    "returned", "settled", "http_status", "error_code", "error_message", "queue_wait_ms", "processing_ms", "last_exit")
  redis.call("HSET", key, "status", "pending", "model", step.stage, "stage", step.stage, "gate", rec.gate,
    "operation", step.operation, "request", step.request, "inference_url", step.url, "input_key", result.result_key,
    "input_size", result.result_size, "input_sha256", result.result_sha256, "input_content_type",
    result.result_content_type, "claims", 0, "reaps", 0, "failures", 0, "waiting_since", ms(now), "queued_at", ms(now),
    "seq", redis.call("HINCRBY", after .. ":state", "seq", 1), "history", before .. past .. "]")
  redis.call("ZADD", after .. ":jobs", rec.created_at or "0", id)
  count_waiting(after, id, rec)
  note_waiting(after, id, rec)
  enter(after, id, rec, false, now)
  changed(after, id)
end
