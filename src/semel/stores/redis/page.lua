-- Reads items of one partition in order, and forgets entries whose items Redis has removed.
--
-- KEYS[1]  the partition's index
-- ARGV     the time to tell, or '' for the server's; the command that reads a range; its two bounds; how many
--
-- The answer is that of write.lua, each item led by its sort key; then how many entries were read, and the last.

-- As in read.lua: no replica is ever read, and nothing is removed.
redis.call('ZREMRANGEBYRANK', KEYS[1], 1, 0)

local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = tonumber(time[1]) + tonumber(time[2]) / 1e6
end

local outcomes, strings = {}, {}
local members = redis.call(ARGV[2], KEYS[1], ARGV[3], ARGV[4], 'LIMIT', 0, ARGV[5])
for _, member in ipairs(members) do
  local flat = redis.call('HGETALL', KEYS[1] .. ':' .. member)
  if #flat == 0 then
    redis.call('ZREM', KEYS[1], member)
  else
    local outcome = {1, #member}
    strings[#strings + 1] = member
    for place, value in ipairs(flat) do
      outcome[place + 2] = #value
      strings[#strings + 1] = value
    end
    outcomes[#outcomes + 1] = outcome
  end
end
return {cmsgpack.pack({now, outcomes}), table.concat(strings), #members, members[#members] or ''}
