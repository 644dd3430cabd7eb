-- ring(bell): wake one worker that waits; never more tokens than such workers, and a lost one costs a second at the most.
local function ring(bell)
  local time = redis.call("TIME")
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  if redis.call("LLEN", bell) < redis.call("ZCOUNT", bell .. ":listeners", now, "+inf") then
    redis.call("RPUSH", bell, "1")
    redis.call("PEXPIRE", bell, 5000)
  end
end
