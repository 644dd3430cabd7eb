-- What a claim took from its gates, and how it comes back: slots are leases, tokens are corrected by what was used.
-- The record says it: slots (keys, separated by blanks), spent (one a line: counter, part, amount, window, gate, suffix)
-- and gate_wait (where the job waits for its turn). The same steps as queuecore/gates.py.

local SLICES, SLOTS_TTL_MS = 30, 86400000 -- a register that nobody touches for a day goes

-- slot_holder(id, rec): the claim, not the job: a later claim has another fence.
local function slot_holder(id, rec)
  return id .. ":" .. (rec.fence or "0")
end

-- waiter(id, rec): how it stands in a gate's waiting zset; the queue may be another one than the slot's.
local function waiter(id, rec)
  return id .. " " .. (rec.model or "")
end

local function window_key(gate, now)
  return gate.key .. ":" .. ms((now - now % gate.window_ms) / 1000) .. gate.suffix
end

-- add_spent(gate, amount, now): count it from now on; the counter and the part of it that is now.
local function add_spent(gate, amount, now)
  local key, part = window_key(gate, now), math.floor(now % gate.window_ms * SLICES / gate.window_ms)
  redis.call("INCRBY", key, ms(amount))
  redis.call("PEXPIRE", key, 2 * gate.window_ms)
  redis.call("HINCRBY", key .. ":slices", part, ms(amount))
  redis.call("HSET", key .. ":slices", part .. "@", ms(now))
  redis.call("PEXPIRE", key .. ":slices", 2 * gate.window_ms)
  return key, part
end

-- call_next(waiting, now): whoever waits longest there has its turn now.
local function call_next(waiting, now)
  local first = redis.call("ZRANGE", waiting, "(" .. ms(now), "+inf", "BYSCORE", "LIMIT", 0, 1)[1]
  local other, model = string.match(first or "", "^(%S+) (%S+)$")
  if other then
    redis.call("ZADD", waiting, ms(now), first)
    redis.call("ZADD", "relay:" .. model .. ":delayed", "XX", ms(now), other)
  end
end

-- correct_spent(rec, actual, now): what was taken too much comes back, where its counter still lives; an excess counts now.
local function correct_spent(rec, actual, now)
  for key, part, amount, window, gate, suffix in string.gmatch(rec.spent or "", "(%S+) (%d+) (%d+) (%d+) (%S+) (%S+)\n") do
    local excess = actual - tonumber(amount)
    if excess > 0 then
      add_spent({ key = gate, suffix = suffix, window_ms = tonumber(window) }, excess, now)
    elseif redis.call("EXISTS", key, key .. ":slices") == 2 then
      local known = tonumber(redis.call("HGET", key .. ":slices", part) or "0")
      local back = math.min(-excess, known, tonumber(redis.call("GET", key)))
      redis.call("INCRBY", key, ms(-back))
      redis.call("HINCRBY", key .. ":slices", part, ms(-back))
      call_next(gate .. suffix .. ":waiting", now)
    end
  end
end

-- keep_slots(id, rec, ends): renewed with the claim's lease.
local function keep_slots(id, rec, ends)
  for key in string.gmatch(rec.slots or "", "%S+") do
    redis.call("ZADD", key, ms(ends), slot_holder(id, rec))
    redis.call("PEXPIRE", key, SLOTS_TTL_MS)
  end
end

-- free_slots(id, rec, now): given back, and whoever has waited longest for one comes next.
local function free_slots(id, rec, now)
  for key in string.gmatch(rec.slots or "", "%S+") do
    redis.call("ZREM", key, slot_holder(id, rec))
    call_next(key .. ":waiting", now)
  end
  if rec.gate_wait then
    redis.call("ZREM", rec.gate_wait, waiter(id, rec))
  end
  if rec.slots or rec.spent or rec.gate_wait then
    redis.call("HDEL", "job:" .. id, "slots", "spent", "gate_wait")
    rec.slots, rec.spent, rec.gate_wait = nil, nil, nil
  end
end
