-- Reads entries of an index in order.
--
-- KEYS[1]  the index
-- ARGV     the time to tell, or '' for the server's; the command that reads a range; its two bounds; how many
--
-- The answer is MessagePack of {now, {}} as every script's, and the entries.

-- As in read.lua: no replica is ever read, and nothing is removed.
redis.call('ZREMRANGEBYRANK', KEYS[1], 1, 0)

local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = tonumber(time[1]) + tonumber(time[2]) / 1e6
end

return {cmsgpack.pack({now, {}}), redis.call(ARGV[2], KEYS[1], ARGV[3], ARGV[4], 'LIMIT', 0, ARGV[5])}
