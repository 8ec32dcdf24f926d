-- Reads the items that a range of a sorted set leads to, and removes the entries that lead nowhere.
--
-- KEYS[1]  the order of a partition, or one value of an index
-- ARGV     the time, or '' for the server's; the command that reads the range; its bounds; how many; 'index' if it
--          is an index
--
-- The reply is the time, the entries, and for each entry the fields of its item: none if it led nowhere.

-- A replica refuses to remove, and so is never read. While a slot of a cluster moves, its keys are on two nodes, and
-- two keys are refused of which one does not exist.
redis.call('ZREMRANGEBYRANK', KEYS[1], 1, 0)
redis.call('EXISTS', KEYS[1], KEYS[1] .. '!')

local now, index = tonumber(ARGV[1]), ARGV[6] == 'index'
if not now then
  local time = redis.call('TIME')
  now = time[1] + time[2] / 1e6
end

-- Whether an item of an index still lists the entry: the item may have changed places, or have been made again.
local function lists(flat, entry)
  for place = 1, #flat, 2 do
    if flat[place] == '@' then
      for _, other in ipairs(cmsgpack.unpack(flat[place + 1])) do
        if other[1] == KEYS[1] and other[2] == entry then return true end
      end
    end
  end
  return false
end

local found, items = redis.call(ARGV[2], KEYS[1], ARGV[3], ARGV[4], 'LIMIT', 0, ARGV[5]), {}
for number, entry in ipairs(found) do
  local _, place = string.find(entry, '\0\0', 1, true)
  local key = index and string.sub(entry, place + 1) or KEYS[1] .. ':' .. entry
  items[number] = redis.call('HGETALL', key)
  if #items[number] == 0 or (index and not lists(items[number], entry)) then
    redis.call('ZREM', KEYS[1], entry)
    items[number] = {}
  end
end
return {string.format('%.17g', now), found, items}
