-- Reads one item, whether its time is up or not.
--
-- KEYS[1]  the item
-- ARGV[1]  the time to tell, or '' for the server's
--
-- The answer is that of write.lua: {now, {outcome}}, and the item's names and values.

-- Whatever could write is refused by a replica, and this removes nothing: so no replica is ever read.
redis.call('HDEL', KEYS[1], '')

local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = tonumber(time[1]) + tonumber(time[2]) / 1e6
end

local flat = redis.call('HGETALL', KEYS[1])
if #flat == 0 then return cmsgpack.pack({now, {0}}) end

local outcome = {1}
for place, value in ipairs(flat) do
  outcome[place + 1] = #value
end
return {cmsgpack.pack({now, {outcome}}), table.concat(flat)}
