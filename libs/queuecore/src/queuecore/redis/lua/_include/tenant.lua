-- The cap of a tenant's pending jobs; see tenant_set in record.

-- strays_of(set): some members that are not pending: an operator removed their record, or an older script claimed them.
local function strays_of(set)
  local found = {}
  for _, other in ipairs(redis.call("SRANDMEMBER", set, 100)) do
    if redis.call("HGET", "job:" .. other, "status") ~= "pending" then
      found[#found + 1] = other
    end
  end
  return found
end
