-- Notes entries that led nowhere, and removes those that did so before, long enough ago.
--
-- KEYS      the index: its entries, their ends, and the doubts about them
-- ARGV[1]   the time, or '' for the server's
-- ARGV[2]   when the index was read
-- ARGV[3..] the entries

-- An item follows its entry within so many seconds or not at all, by LATE_SECONDS in indexes.py and by clocks that
-- are as far apart again. Who enters an item takes the doubt away, so the entry is older than the doubt; and who
-- has read it so long after that has seen what came of it.
local SETTLED = 600

local call = redis.call
local index, ends, doubts = KEYS[1], KEYS[2], KEYS[3]

local now = ARGV[1]
if now == '' then
  local time = call('TIME')
  now = string.format('%.17g', time[1] + time[2] / 1e6)
end

for place = 3, #ARGV do
  local member = ARGV[place]
  local there = #call('ZRANGEBYLEX', index, '[' .. member, '[' .. member) > 0
  if there and call('HSETNX', doubts, member, now) == 0 then
    if call('HMGET', doubts, member)[1] + SETTLED <= tonumber(ARGV[2]) then
      call('ZREM', index, member)
      call('ZREM', ends, member)
      call('HDEL', doubts, member)
    end
  end
end

local left = call('PTTL', index)
if left > 0 then call('PEXPIRE', doubts, left) end
