-- Where a job of the stream transport stands (seed 003): relay:<m>:stream, or :stream:high, group workers.
-- relay:<m>:stream:entries says which entry is a job's own; any other is litter and dropped when a claim comes to it.
-- Waiting = not delivered yet, or held by the consumer "released"; running = held by "claimed", or by a worker of
-- another make. An entry that was not delivered is never deleted: that would make the group's lag unknown.
-- @include bell

local function entries_of(base)
  return base .. ":stream:entries"
end

local function lane_of(rec)
  return rec.priority == "high" and ":stream:high" or ":stream"
end

-- where(base, id): its stream, its entry, and what the register says; nil when it has none.
local function where(base, id)
  local known = redis.call("HGET", entries_of(base), id)
  if not known then
    return nil
  end
  local lane, entry = string.match(known, "^(%S+) (%S+)$")
  return base .. lane, entry, known
end

-- ask(...): the reply, or an empty one where the stream or its group is not there yet.
local function ask(...)
  local reply = redis.pcall(...)
  if not reply.err then
    return reply
  end
  if string.find(reply.err, "NOGROUP", 1, true) or string.find(reply.err, "no such key", 1, true) then
    return {}
  end
  error(reply.err)
end

-- holder_of(stream, entry): consumer and idle ms of a delivered entry, or nil.
local function holder_of(stream, entry)
  local found = ask("XPENDING", stream, "workers", entry, entry, 1)
  if not found[1] then
    return nil
  end
  return found[1][2], tonumber(found[1][3])
end

-- last_of(stream): the entry delivered last, or nil.
local function last_of(stream)
  for _, group in ipairs(ask("XINFO", "GROUPS", stream)) do
    local info = {}
    for i = 1, #group, 2 do
      info[group[i]] = group[i + 1]
    end
    if info["name"] == "workers" then
      return info["last-delivered-id"]
    end
  end
  return nil
end

-- is_undelivered(stream, entry): it stands there and no worker has seen it.
local function is_undelivered(stream, entry)
  local last = last_of(stream)
  return last ~= nil and redis.call("XRANGE", stream, entry, entry)[1] ~= nil
    and redis.call("XRANGE", stream, "(" .. last, entry, "COUNT", 1)[1] ~= nil
end

local function job_of(fields)
  for i = 1, #fields, 2 do
    if fields[i] == "job_id" then
      return fields[i + 1]
    end
  end
  return ""
end

-- next_of(stream): the first entry that was not delivered, and its job id; nil when there is none.
local function next_of(stream)
  local last = last_of(stream)
  local found = last and redis.call("XRANGE", stream, "(" .. last, "+", "COUNT", 1)[1]
  if not found then
    return nil
  end
  return found[1], job_of(found[2])
end

-- deliver(stream, consumer): the next entry becomes this consumer's; its id and its job's, or nil.
local function deliver(stream, consumer)
  local entry, id = next_of(stream)
  if entry then
    redis.call("XREADGROUP", "GROUP", "workers", consumer, "COUNT", 1, "STREAMS", stream, ">")
  end
  return entry, id
end

local function remove(base, stream, entry)
  redis.call("XACK", stream, "workers", entry)
  redis.call("XDEL", stream, entry)
  redis.call("SREM", base .. ":stream:litter", string.sub(stream, #base + 1) .. " " .. entry)
end

-- ensure(base, rec): the stream and the group of its lane.
local function ensure(base, rec)
  if not last_of(base .. lane_of(rec)) then
    redis.call("XGROUP", "CREATE", base .. lane_of(rec), "workers", "0", "MKSTREAM")
  end
end

-- append(base, id, rec): a new entry at the end of its lane, which is there.
local function append(base, id, rec)
  local lane = lane_of(rec)
  local entry = redis.call("XADD", base .. lane, "*", "job_id", id)
  redis.call("HSET", entries_of(base), id, lane .. " " .. entry)
  return base .. lane, entry
end

-- is_paused(base): nobody may claim, and who enters goes to :paused. Until all is back a resumed queue is still paused.
local function is_paused(base)
  local state = redis.call("HMGET", base .. ":state", "paused", "moving")
  return (state[1] or state[2]) and true or false
end

-- keeps_entries(base): what stops running keeps its entry, because a pause is not taking them out.
local function keeps_entries(base)
  local state = redis.call("HMGET", base .. ":state", "paused", "moving")
  return state[2] == "show" or not (state[1] or state[2])
end

-- is_held(base, id): some worker has taken the entry.
local function is_held(base, id)
  local stream, entry = where(base, id)
  local holder = stream and holder_of(stream, entry)
  return holder ~= nil and holder ~= "released"
end

-- next_own(base, lane): the first entry of a lane that was not delivered; up to 100 ahead of it that stand for no job
-- are dropped. nil when there is none.
local function next_own(base, lane)
  for _ = 1, 100 do
    local entry, of = next_of(base .. lane)
    if not entry or redis.call("HGET", entries_of(base), of) == lane .. " " .. entry then
      return entry
    end
    remove(base, base .. lane, deliver(base .. lane, "claimed"))
  end
  return nil
end

-- hold(base, id, rec): take the entry if a claim may have it: it was released, or it is the next of its lane.
local function hold(base, id)
  next_own(base, ":stream:high")
  next_own(base, ":stream")
  local stream, entry = where(base, id)
  if not stream or is_paused(base) then
    return false
  end
  local holder = holder_of(stream, entry)
  if holder == "released" then
    redis.call("XCLAIM", stream, "workers", "claimed", 0, entry, "JUSTID")
    return true
  end
  if holder or next_of(stream) ~= entry then
    return false
  end
  deliver(stream, "claimed")
  return true
end

-- lease_end(rec, now, lease_ms, renewing): until when a lease granted now lasts.
local function lease_end(_, now, lease_ms)
  return now + lease_ms
end

-- lease_is_live(base, id, rec, now): our own claims are judged by the record; a worker of another make has no
-- heartbeat, and its protocol reclaims after 60 s of idleness.
local function lease_is_live(base, id, rec, now)
  if rec.status == "processing" and count_of(rec, "lease_until") > now then
    return true
  end
  local stream, entry = where(base, id)
  if not stream then
    return false
  end
  local holder, idle = holder_of(stream, entry)
  return holder ~= nil and holder ~= "claimed" and holder ~= "released" and idle < 60000
end

-- set_lease(...): the ZREM comes first, because a full server (maxmemory) refuses a script at its first write that may
-- take memory and lets one finish that began with another: owners and verdicts have to get through.
local function set_lease(base, id)
  redis.call("ZREM", base .. ":first-seen", id)
  local stream, entry = where(base, id)
  if stream and holder_of(stream, entry) == "claimed" then
    redis.call("XCLAIM", stream, "workers", "claimed", 0, entry, "JUSTID")
  end
end

-- drop_lease(base, id): nothing stands outside the record.
local function drop_lease(base, id)
  redis.call("ZREM", base .. ":first-seen", id)
end

local function leave_registers(base, id, rec)
  redis.call("ZREM", base .. ":first-seen", id)
  redis.call("ZREM", base .. ":missing", id)
  redis.call("ZREM", base .. ":waiting", id)
  redis.call("ZREM", base .. ":deadlines", id)
  redis.call("ZREM", base .. ":delayed", id)
  redis.call("ZREM", base .. ":paused", id)
  if rec.ordering_key and redis.call("LREM", base .. ":ordered:" .. rec.ordering_key, 0, id) > 0 then
    redis.call("HINCRBY", base .. ":state", "ordered", -1)
  end
end

-- leave(base, id, rec): out of every structure.
local function leave(base, id, rec)
  leave_registers(base, id, rec)
  local stream, entry, known = where(base, id)
  if not stream then
    return
  end
  redis.call("HDEL", entries_of(base), id)
  if is_undelivered(stream, entry) then
    redis.call("SADD", base .. ":stream:litter", known)
  else
    remove(base, stream, entry)
  end
end

-- unhold(base, id, rec): no longer running; put_back follows. The entry is kept, for the place in the lane is its.
local function unhold(base, id, rec)
  local stream, entry = where(base, id)
  rec.was_held = stream ~= nil and holder_of(stream, entry) ~= nil
  if rec.was_held and keeps_entries(base) and redis.call("XRANGE", stream, entry, entry)[1] then
    leave_registers(base, id, rec)
    redis.call("XCLAIM", stream, "workers", "released", 0, entry, "JUSTID")
    rec.kept = true
  else
    leave(base, id, rec)
  end
end

-- put_aside(base, id, rec): refused by a gate: true, its entry is kept at its place, and nobody is woken for it.
local function put_aside(base, id, rec)
  local stream, entry = where(base, id)
  leave_registers(base, id, rec)
  redis.call("XCLAIM", stream, "workers", "released", 0, entry, "JUSTID")
  redis.call("HSET", "job:" .. id, "returned", "1")
  return true
end

-- is_waiting(base, id): in some structure of those that wait.
local function is_waiting(base, id)
  if redis.call("ZSCORE", base .. ":delayed", id) or redis.call("ZSCORE", base .. ":paused", id) then
    return true
  end
  local stream, entry = where(base, id)
  return stream ~= nil and redis.call("XRANGE", stream, entry, entry)[1] ~= nil
    and (holder_of(stream, entry) == "released" or is_undelivered(stream, entry))
end

-- pause_score(rec): high before normal, in each lane those that came back first, then by the number of the entry.
local function pause_score(rec)
  local lane, back = rec.priority == "high" and 0 or 4e15, rec.returned == "1" and 0 or 2e15
  return ms(lane + back + count_of(rec, "entered"))
end

local function number_anew(base, id, rec)
  rec.entered = tostring(redis.call("HINCRBY", base .. ":state", "entries", 1))
  redis.call("HSET", "job:" .. id, "entered", rec.entered)
end

-- hide_waiting(base, most), show_waiting(base, most): so many jobs of a pause, or of its end; true when none is left.
-- What waits is in a zset meanwhile.
local function hide_waiting(base, most)
  local function hide(lane, found)
    local entries, ids = {}, {}
    for i, one in ipairs(found) do
      entries[i], ids[i] = one[1], job_of(one[2])
    end
    local known, own = redis.call("HMGET", entries_of(base), unpack(ids)), {}
    for i, id in ipairs(ids) do
      if known[i] == lane .. " " .. entries[i] then
        local row = redis.call("HMGET", "job:" .. id, "priority", "returned", "entered")
        own[#own + 1] = pause_score({ priority = row[1], returned = row[2], entered = row[3] or nil })
        own[#own + 1] = id
      else
        redis.call("SREM", base .. ":stream:litter", lane .. " " .. entries[i])
        ids[i] = ""
      end
    end
    redis.call("XACK", base .. lane, "workers", unpack(entries))
    redis.call("XDEL", base .. lane, unpack(entries))
    redis.call("HDEL", entries_of(base), unpack(ids))
    if #own > 0 then
      redis.call("ZADD", base .. ":paused", unpack(own))
    end
  end
  for _, lane in ipairs({ ":stream:high", ":stream" }) do
    local back = {}
    for _, one in ipairs(ask("XPENDING", base .. lane, "workers", "-", "+", most, "released")) do
      local found = redis.call("XRANGE", base .. lane, one[1], one[1])[1]
      if found then
        back[#back + 1] = found
      else
        redis.call("XACK", base .. lane, "workers", one[1])
      end
      most = most - 1
    end
    if #back > 0 then
      hide(lane, back)
    end
    if most > 0 and next_of(base .. lane) then
      local read = redis.call("XREADGROUP", "GROUP", "workers", "claimed", "COUNT", most, "STREAMS", base .. lane, ">")
      hide(lane, read[1][2])
      most = most - #read[1][2]
    end
    if most <= 0 then
      return false
    end
  end
  return true
end

local function show_waiting(base, most)
  ensure(base, { priority = "high" })
  ensure(base, {})
  local ids = redis.call("ZRANGE", base .. ":paused", 0, most - 1)
  for _, id in ipairs(ids) do
    local row = redis.call("HMGET", "job:" .. id, "priority", "returned", "status")
    local rec = { priority = row[1], returned = row[2] }
    if row[3] then
      number_anew(base, id, rec)
    end
    local stream, own = append(base, id, rec)
    if rec.returned == "1" and next_own(base, lane_of(rec)) == own then
      deliver(stream, "released")
    end
  end
  if #ids > 0 then
    redis.call("ZREM", base .. ":paused", unpack(ids))
  end
  if redis.call("EXISTS", base .. ":paused") == 1 then
    return false
  end
  for _ = 1, redis.call("ZCARD", base .. ":stream:bell:listeners") do
    ring(base .. ":stream:bell")
  end
  return true
end

-- enter(base, id, rec, at_tail, now): at the end of its lane.
local function enter(base, id, rec)
  number_anew(base, id, rec)
  if is_paused(base) then
    redis.call("ZADD", base .. ":paused", pause_score(rec), id)
  else
    ensure(base, rec)
    append(base, id, rec)
    ring(base .. ":stream:bell")
  end
end

-- put_back(base, id, rec): ahead of those not delivered yet, in the order of their entries (G5). A job whose entry was
-- lost has no place any more: it begins anew at the end.
local function put_back(base, id, rec)
  if not rec.was_held or not rec.kept and keeps_entries(base) then
    enter(base, id, rec)
    return
  end
  redis.call("HSET", "job:" .. id, "returned", "1")
  rec.returned = "1"
  if rec.kept then
    ring(base .. ":stream:bell")
  else
    redis.call("ZADD", base .. ":paused", pause_score(rec), id)
  end
end

-- waiting_count(base): what max_pending bounds.
local function waiting_count(base)
  local count = redis.call("ZCARD", base .. ":paused") + redis.call("ZCARD", base .. ":delayed")
    - redis.call("SCARD", base .. ":stream:litter")
    + tonumber(redis.call("HGET", base .. ":state", "ordered") or "0")
  for _, lane in ipairs({ ":stream:high", ":stream" }) do
    count = count + redis.call("XLEN", base .. lane)
    for _, one in ipairs(ask("XPENDING", base .. lane, "workers")[4] or {}) do
      count = count - (one[1] ~= "released" and tonumber(one[2]) or 0)
    end
  end
  return count
end

-- charge(base, rec): its tenant was served; only sorted sets let tenants take turns.
local function charge() end

-- note_failure, note_completed, forget: seed 004 counts these; only stages do.
local function note_failure() end
local function note_completed() end
local function forget() end

-- note_verdict(base, id, rec, status, payload): streams have no readers of their own.
local function note_verdict() end

-- bury, is_buried, dig_up(base, id, rec): dead letters are a stream too.
local function bury(base, id)
  redis.call("HSET", "job:" .. id, "dead_entry", redis.call("XADD", base .. ":stream:dead", "*", "job_id", id))
end

local function is_buried(base, _, rec)
  return rec.dead_entry ~= nil and redis.call("XRANGE", base .. ":stream:dead", rec.dead_entry, rec.dead_entry)[1] ~= nil
end

local function dig_up(base, id, rec)
  redis.call("XDEL", base .. ":stream:dead", rec.dead_entry)
  redis.call("HDEL", "job:" .. id, "dead_entry")
end
