-- Whether a job may be claimed now: the limits of its model and of its provider, as queuecore/gates.py describes them.

local RESERVED_MS, ROUND_MS, FAULT_PAUSE_MS, ROUNDING = 10000, 60000, 5000, 1e-6

-- charges_of(gate, now): when each leaves the window and how much it is, in that order, and the sum. What somebody else
-- added to a counter is taken to be spread evenly over its window.
local function charges_of(gate, now)
  local span, found, used = gate.window_ms, {}, 0
  local start = now - now % span
  local function count(leaves, amount)
    if leaves > now and amount > 0 then
      found[#found + 1] = { leaves, amount }
    end
  end
  for _, begin in ipairs({ start - span, start }) do
    local key, slices = window_key(gate, begin), {}
    local known = redis.call("GET", key) or "0"
    assert(string.find(known, "^-?%d+$"), key .. " is no counter") -- taking from it would fail half way
    local others = tonumber(known)
    local flat = redis.call("HGETALL", key .. ":slices")
    for i = 1, #flat, 2 do
      slices[flat[i]] = tonumber(flat[i + 1])
    end
    for name, amount in pairs(slices) do
      if slices[name .. "@"] then
        others = others - amount
        count(slices[name .. "@"] + span, amount)
      end
    end
    if others > 0 then
      local parts = begin < start and SLICES or math.floor((now - start) * SLICES / span) + 1
      for part = 1, parts do
        count(begin + math.floor(part * span / SLICES) + span, others / parts)
      end
    end
  end
  table.sort(found, function(one, other)
    return one[1] < other[1] or one[1] == other[1] and one[2] < other[2]
  end)
  for _, one in ipairs(found) do
    used = used + one[2]
  end
  return found, used
end

-- ahead_of(gate, member, rec, now): waiters whose turn has come, and those to come; none for a job that waits itself or
-- goes first.
local function ahead_of(gate, member, rec, now)
  if rec.priority == "true" or redis.call("ZSCORE", gate.waiting, member) then
    return 0, 0
  end
  return redis.call("ZCOUNT", gate.waiting, "(" .. ms(now - RESERVED_MS), ms(now)),
    redis.call("ZCOUNT", gate.waiting, "(" .. ms(now), "+inf")
end

local function cost_of(gate, rec)
  if gate.estimate == 0 then
    return 1
  end
  return math.min(gate.limit, math.max(1, tonumber(rec.tokens_estimate or "") or gate.estimate))
end

local answer_of = {}

function answer_of.constant(gate, _, _, now)
  if gate.word == "drop" then
    return { word = "drop", reason = gate.reason }
  end
  return { word = gate.word, at = now + gate.wait_ms, whole = true }
end

function answer_of.rate(gate, member, rec, now)
  local charges, used = charges_of(gate, now)
  local cost, called, to_come = cost_of(gate, rec), ahead_of(gate, member, rec, now)
  if used + cost * (1 + called) <= gate.limit + ROUNDING then
    return { word = "admit" }
  end
  local need, at, left = cost * (1 + called + to_come), now, used
  local rest = (need - 1) % gate.limit + 1
  for _, one in ipairs(charges) do
    if left + rest <= gate.limit + ROUNDING then
      break
    end
    left, at = left - one[2], one[1]
  end
  at = at + math.floor((need - 1) / gate.limit) * gate.window_ms
  return { word = "wait", at = at, whole = used + 1 + called > gate.limit + ROUNDING }
end

function answer_of.concurrency(gate, member, rec, now)
  local held = redis.call("ZCOUNT", gate.key, "(" .. ms(now), "+inf")
  local called, to_come = ahead_of(gate, member, rec, now)
  if held + 1 + called <= gate.limit then
    return { word = "admit" }
  end
  local first = redis.call("ZRANGE", gate.key, "(" .. ms(now), "+inf", "BYSCORE", "LIMIT", 0, 1, "WITHSCORES")[2]
  local rounds = math.floor((called + to_come) / gate.limit)
  return { word = "wait", at = (tonumber(first) or now + 1000) + rounds * ROUND_MS, whole = true }
end

-- ask_gates(gates, id, rec, now): the first that drops decides, else the one that waits longest. One that cannot say,
-- because a key holds something else, makes the job wait.
local function ask_gates(gates, id, rec, now)
  local decisive, member = { word = "admit" }, waiter(id, rec)
  for _, gate in ipairs(gates) do
    local fine, said = pcall(answer_of[gate.kind], gate, member, rec, now)
    if not fine then
      local problem = type(said) == "table" and said.err or tostring(said)
      return { word = "wait", at = now + FAULT_PAUSE_MS, label = gate.label .. ": " .. problem, fault = true }
    end
    if said.word == "drop" then
      return said
    end
    if said.word == "wait" and not (decisive.at and decisive.at >= said.at) then
      decisive, said.label, said.waiting = said, gate.label, gate.waiting
    end
  end
  return decisive
end

-- take_gates(gates, id, rec, now, ends, fence): what the claim of this fence takes; noted in the record.
local function take_gates(gates, id, rec, now, ends, fence)
  rec.fence = fence
  local slots, spent, member = {}, {}, waiter(id, rec)
  for _, gate in ipairs(gates) do
    if gate.waiting then
      redis.call("ZREM", gate.waiting, member)
    end
    if gate.kind == "concurrency" then
      redis.call("ZREMRANGEBYSCORE", gate.key, "-inf", ms(now))
      redis.call("ZADD", gate.key, ms(ends), slot_holder(id, rec))
      redis.call("PEXPIRE", gate.key, SLOTS_TTL_MS)
      slots[#slots + 1] = gate.key
    elseif gate.kind == "rate" then
      local cost = cost_of(gate, rec)
      local key, part = add_spent(gate, cost, now)
      if gate.estimate > 0 then
        spent[#spent + 1] = table.concat({ key, part, ms(cost), ms(gate.window_ms), gate.key, gate.suffix }, " ") .. "\n"
      end
    end
  end
  if #slots > 0 or #spent > 0 then
    redis.call("HSET", "job:" .. id, "slots", table.concat(slots, " "), "spent", table.concat(spent))
  end
  redis.call("HDEL", "job:" .. id, "gate_wait")
end

-- put_off(base, id, rec, said): a refused job waits, uncounted: where it stood, or, taken from there, until its turn.
local function put_off(base, id, rec, said)
  redis.call("HINCRBY", base .. ":state", said.fault and "gate_faults" or "gate_waits", 1)
  if rec.status == "processing" then -- its dead claim was ended in this script
    await_again(base, id, rec)
  end
  if put_aside(base, id, rec) then
    note_waiting(base, id, rec)
    return
  end
  delay(base, id, rec, said.at, rec.priority == "true" and "entry" or "back")
  if rec.gate_wait and rec.gate_wait ~= said.waiting then
    redis.call("ZREM", rec.gate_wait, waiter(id, rec))
    redis.call("HDEL", "job:" .. id, "gate_wait")
  end
  if said.waiting and not said.fault then
    redis.call("ZADD", said.waiting, ms(said.at), waiter(id, rec))
    redis.call("PEXPIRE", said.waiting, SLOTS_TTL_MS)
    redis.call("HSET", "job:" .. id, "gate_wait", said.waiting)
  end
end

-- refusal_of(text, base, id, rec, now, retention): what the claim answers where the gates do not admit it, or nil and they.
local function refusal_of(text, base, id, rec, now, retention)
  local gates = cjson.decode(text)
  local said = ask_gates(gates, id, rec, now)
  if said.word == "drop" then
    redis.call("HINCRBY", base .. ":state", "gate_drops", 1)
    verdict(base, id, rec, "failed", { "error_code", "gate_dropped", "error_message", said.reason }, now,
      retention.result, retention.tombstone)
    return { "gate_dropped" }
  elseif said.word == "wait" then
    put_off(base, id, rec, said)
    return { "waiting", ms(said.at - now), said.label, said.fault and "fault" or said.whole and "queue" or "job" }
  end
  return nil, gates
end
