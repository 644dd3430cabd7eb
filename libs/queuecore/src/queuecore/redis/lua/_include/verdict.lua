-- The end of a job, of whatever kind: record, structures, outbox, ordering key and wake-ups in one step (G3, G9).

-- @include item
-- @include reuse

-- announce(base, id, rec, status, now): the verdict is told at least once (G9). A client that asked for it is told what
-- the record says now, whatever becomes of the record until then: the entry carries it, without what the client sent.
local function announce(base, id, rec, status, now)
  local entry = { "event", id .. ":" .. (rec.generation or "1"), "job_id", id, "status", status, "finished_at", ms(now) }
  if rec.callback_url then
    local told = read_record("job:" .. id)
    told.params = nil
    entry[#entry + 1] = "record"
    entry[#entry + 1] = cjson.encode(told)
  end
  redis.call("XADD", base .. ":outbox", "*", unpack(entry))
end

-- verdict(base, id, rec, status, fields, now, retain_ms, tombstone_ms): fields is a flat list of names and values.
local function verdict(base, id, rec, status, fields, now, retain_ms, tombstone_ms)
  local key, model = "job:" .. id, string.sub(base, 7)
  free_slots(id, rec, now)
  leave(base, id, rec)
  count_no_more(base, id, rec)
  if status ~= "completed" then
    free_item(id, rec)
  end
  settle_reuse(id, rec, status)
  redis.call("HDEL", key, "lease_until", "return_to", "returned")
  redis.call("HSET", key, "status", status, "finished_at", ms(now), "expires_at", ms(now + retain_ms), unpack(fields))
  if rec.status == "processing" and rec.started_at then
    redis.call("HSET", key, "processing_ms", ms(now - count_of(rec, "started_at")))
  end
  redis.call("PEXPIRE", key, retain_ms)
  if rec.idempotency then -- its answer names this record and goes with it
    redis.call("PEXPIRE", rec.idempotency, retain_ms)
  end
  redis.call("HSET", key .. ":gone", "status", status, "finished_at", ms(now), "expires_at", ms(now + retain_ms),
    "model", model, "service_type", rec.service_type or "", "tenant", rec.tenant or "",
    "pipeline", rec.pipeline or "")
  redis.call("PEXPIRE", key .. ":gone", retain_ms + tombstone_ms)
  announce(base, id, rec, status, now)
  let_next_in(base, id, rec, now)
  local result, problem = cjson.null, cjson.null
  for i = 1, #fields, 2 do
    if fields[i] == "result_key" then
      result = fields[i + 1]
    elseif fields[i] == "error_code" then
      problem = fields[i + 1]
    end
  end
  local payload = cjson.encode({ job_id = id, status = status, result_key = result, error = problem })
  note_verdict(base, id, rec, status, payload)
  redis.call("PUBLISH", "jobs:" .. model .. ":completed", payload)
  redis.call("PUBLISH", "job:" .. id .. ":done", status)
end

-- fail_for_good(...): the verdict failed; a pipeline's run becomes a dead letter, to be resumed at this stage.
local function fail_for_good(base, id, rec, fields, now, retention)
  local retain_ms = rec.plan and retention.deadletter or retention.result
  verdict(base, id, rec, "failed", fields, now, retain_ms, retention.tombstone)
  if rec.plan then
    bury(base, id, rec)
  end
end

-- end_dead_claim(...): a claim whose owner is held dead: cancelled, dead letter, or pending again and counted (G6).
-- With keep_place the entry stays where it is, for the claim that takes it over in the same script.
local function end_dead_claim(base, id, rec, cause, max_reaps, now, retention, keep_place)
  local reaps = count_of(rec, "reaps") + 1
  if rec.cancel_requested == "1" then
    verdict(base, id, rec, "cancelled", { "error_code", "cancelled", "last_exit", cause }, now, retention.result,
      retention.tombstone)
    return "cancelled"
  end
  if reaps > max_reaps then
    verdict(base, id, rec, "failed", { "error_code", "worker_lost", "error_message",
      "its worker died " .. reaps .. " times, last: " .. cause, "last_exit", cause, "reaps", reaps }, now,
      retention.deadletter, retention.tombstone)
    bury(base, id, rec)
    return "deadletter"
  end
  redis.call("HSET", "job:" .. id, "reaps", reaps, "last_exit", cause)
  rec.reaps = tostring(reaps)
  if keep_place then
    free_slots(id, rec, now)
  else
    rec.reclaimed_now = true
    requeue(base, id, rec, now)
  end
  return "requeued"
end
