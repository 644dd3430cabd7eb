-- Items that are taken once (seed 004): dedup:seen by expiry, dedup:jobs names who took each.

-- take_item(id, rec, now): this job has it until its window is over.
local function take_item(id, rec, now)
  for _, old in ipairs(redis.call("ZRANGEBYSCORE", "dedup:seen", "-inf", ms(now), "LIMIT", 0, 100)) do
    redis.call("ZREM", "dedup:seen", old)
    redis.call("HDEL", "dedup:jobs", old)
  end
  redis.call("ZADD", "dedup:seen", ms(now + rec.item_ms), rec.item)
  redis.call("HSET", "dedup:jobs", rec.item, id)
end

-- free_item(id, rec): it did not come to a result; who has the item meanwhile keeps it.
local function free_item(id, rec)
  if rec.item and redis.call("HGET", "dedup:jobs", rec.item) == id then
    redis.call("ZREM", "dedup:seen", rec.item)
    redis.call("HDEL", "dedup:jobs", rec.item)
  end
end
