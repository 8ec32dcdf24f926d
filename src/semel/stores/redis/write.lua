-- Makes writes: each by itself, or all of them or none. A refused write returns the item that it found.
--
-- KEYS     for each write its item or, if the table has a sort key, the order of the item's partition
-- ARGV[1]  the time, or '' for the server's
-- ARGV[2]  the writes as MessagePack, {"writes": [...]}, and what holds for all of them, true or missing:
--            together   all of them are made, or none
--            confirm    replicas confirm writes
--            cluster    the server is a node of a cluster
--
-- The fields of a write, of which most are missing:
--            expires    the attribute that says when the item ends
--            read       the item is read: a write that is always refused
--            whole      nothing of the item before stays: a put, or a deletion
--            absent     no item may be there
--            expect     the values that must be there, false for an attribute that must be missing
--            set        the values to set, false for an attribute to remove
--            count, by, cap   the attribute to add to, how much, and its greatest value
--            member, score    the item's place in the order of its partition
--            indexes    {"key", "by", "sort", "number"} of each, if entries may be added; "number" says whether
--                       the sort attribute is a number
--
-- The reply is MessagePack of {now, {{made, {name, value, ...}}, ...}}: for each write 1 or 0, and the fields of the
-- item if the reply has it. Names and values are written as bytes, which Redis' own MessagePack does not have.
--
-- The field '@' of an item lists the entries that lead to it in indexes: {{index, entry}, ...} as MessagePack.

-- Redis removes an item this long after its end: the clock of a promoted replica may be ahead.
local MARGIN = 60
-- What ends later than this never ends; Redis cannot count so many milliseconds.
local FAR = 1e10

local call = redis.call
local batch = cmsgpack.unpack(ARGV[2])

local now = tonumber(ARGV[1])
if not now then
  local time = call('TIME')
  now = time[1] + time[2] / 1e6
end

-- A value as it is stored, and as it is compared. Numbers keep all their digits; a table is a moment after now.
local function text(value)
  if type(value) == 'table' then value = now + value.seconds end
  if type(value) == 'number' then return string.format('%.17g', value + 0) end
  return value
end

local function allowed(write, item)
  if write.read then
    return false
  elseif write.count then
    local sum = (tonumber(item and item[write.count]) or 0) + write.by
    return (item or write.by >= 0) and sum <= (write.cap or math.huge)
  elseif write.absent then
    return not item
  elseif not write.expect then
    return true
  elseif not item then
    return false
  end
  for name, value in pairs(write.expect) do
    if (item[name] or false) ~= text(value) then return false end
  end
  return true
end

-- Has Redis remove a key after a moment, or later if the key has more milliseconds left.
local function expire(key, moment, left)
  local milliseconds = math.ceil((math.max(moment - now, 0) + MARGIN) * 1000)
  if milliseconds >= FAR * 1000 then
    call('PERSIST', key)
  elseif left ~= -1 and left < milliseconds then
    call('PEXPIRE', key, milliseconds)
  end
end

-- Adds an entry to a set, and removes two whose items have ended: the first entry, and any.
local function enter(write, set, score, entry, moment)
  local left = call('PTTL', set)
  call('ZADD', set, score, entry)
  expire(set, moment, left)
  for _, other in ipairs({call('ZRANGE', set, 0, 0)[1], call('ZRANDMEMBER', set)}) do
    local _, place = string.find(other, '\0\0', 1, true)
    local key = set == write.order and set .. ':' .. other or string.sub(other, (place or 0) + 1)
    local ended = tonumber(call('HGET', key, write.expires) or 0)
    if other ~= entry and ended and ended + MARGIN <= now then call('ZREM', set, other) end
  end
end

-- A number as a text that sorts as numbers do: its bits, those of a negative number inverted.
local function sortable(number)
  local flip = number < 0 and 255 or 128
  local function hex(byte)
    local bits = string.byte(byte)
    if flip == 255 then bits = 255 - bits end
    if flip == 128 then bits, flip = bits + 128, 0 end
    return string.format('%02x', bits)
  end
  return (string.gsub(struct.pack('>d', number), '.', hex))
end

-- The entries of an item: for each index the set of the item's value, and in it the sort attribute and the key.
local function entries(write, item)
  local found, slot = {}, batch.cluster and string.match(write.key, '{.-}') or ''
  for _, index in ipairs(write.indexes or {}) do
    local value, place = item[index.by], ''
    if index.sort then place = item[index.sort] end
    if index.number then
      place = tonumber(place) and sortable(tonumber(place) + 0)
    elseif place then
      place = string.gsub(place, '%z', '\0\1')
    end
    if value and place then found[#found + 1] = {index.key .. slot .. value, place .. '\0\0' .. write.key} end
  end
  return found
end

local function make(write, item)
  local key, expires, after, words, gone = write.key, write.expires, {}, {}, {}
  local function set(name, value)
    after[name], words[#words + 1], words[#words + 2] = value, name, value
  end
  if item and not write.whole then
    for name, value in pairs(item) do after[name] = value end
  end
  for name, value in pairs(write.set) do
    if not value then
      after[name], gone[#gone + 1] = nil, name
    elseif not (write.count and name == expires and after[name]) then
      set(name, text(value))
    end
  end
  if write.count then set(write.count, text((tonumber(after[write.count]) or 0) + write.by)) end

  local before = item and item['@'] and cmsgpack.unpack(item['@']) or {}
  local leading = before
  if write.whole or write.indexes then
    leading = entries(write, after)
    if #leading > 0 then set('@', cmsgpack.pack(leading)) else gone[#gone + 1] = '@' end
  end

  -- Entries first, as a set may have too many and never too few.
  local moves = next(after) and (write.whole or write.indexes or not item or after[expires] ~= item[expires])
  local moment, stays = tonumber(after[expires]) or math.huge, {}
  if moves and write.order then enter(write, write.order, write.score or 0, write.member, moment) end
  for _, entry in ipairs(leading) do
    if moves then enter(write, entry[1], 0, entry[2], moment) end
    stays[entry[1] .. entry[2]] = true
  end
  if item and write.whole then
    call('DEL', key)
  elseif item and #gone > 0 then
    call('HDEL', key, unpack(gone))
  end
  if #words > 0 then call('HSET', key, unpack(words)) end
  if moves then expire(key, moment, -2) end
  if write.order and not next(after) then call('ZREM', write.order, write.member) end
  for _, entry in ipairs(before) do
    if not stays[entry[1] .. entry[2]] then call('ZREM', entry[1], entry[2]) end
  end
  -- A user without the permission to publish may still write: waiters poll too.
  redis.pcall(batch.cluster and 'SPUBLISH' or 'PUBLISH', key, '')
end

local all, endless, moving, written = true, false, false, false

-- Whether the slot of a key is moving to another node of the cluster: then two keys are refused that are not both
-- here, and one of these never exists. The sets of the scope may be on the other node.
local function is_moving(key)
  return batch.cluster and type(redis.pcall('EXISTS', key, key .. '!')) == 'table'
end

-- Reads the item of a write, and decides on the write.
local function decide(write)
  moving = moving or ((write.order or write.indexes) and is_moving(write.key))
  if moving then return end
  write.found = call('HGETALL', write.key)
  if #write.found > 0 then
    write.item = {}
    for place = 1, #write.found, 2 do write.item[write.found[place]] = write.found[place + 1] end
  end
  write.allowed = allowed(write, write.item)
  moving = write.item and write.item['@'] and is_moving(write.key)
  endless = endless or (write.allowed and write.count and not write.item and not write.set[write.expires])
  all = all and write.allowed
end

local reply = {}

local function answer(made, fields)
  reply[#reply + 1] = struct.pack('>BBBI4', 0x92, made, 0xdd, #fields)
  for _, word in ipairs(fields) do
    reply[#reply + 1] = struct.pack('>BI4', 0xc6, #word)
    reply[#reply + 1] = word
  end
end

for place, write in ipairs(batch.writes) do
  write.key, write.order = KEYS[place], write.member and KEYS[place]
  if write.order then write.key = write.order .. ':' .. write.member end
  write.set = write.set or {}
  if batch.together then decide(write) end
end

for _, write in ipairs(batch.writes) do
  if not batch.together then decide(write) end
  if endless then return redis.error_reply('NOEND the item would have no end') end
  if moving then return redis.error_reply((written and 'ERR' or 'TRYAGAIN') .. ' the slot of the scope is moving') end
  if not write.allowed then
    -- A replica refuses to remove, and so is never read. A refusal is confirmed by replicas as a write is, and so
    -- has to write: it may show the caller's own claim, which no replica has yet.
    if write.read then call('HDEL', write.key, '') end
    if batch.confirm and write.item then call('HSET', write.key, write.found[1], write.found[2]) end
    answer(0, write.found)
  elseif batch.together and not all then
    answer(1, {})
  else
    make(write, write.item)
    written = true
    answer(1, write.count and call('HGETALL', write.key) or {})
  end
end

return '\146' .. cmsgpack.pack(now) .. struct.pack('>BI4', 0xdd, #batch.writes) .. table.concat(reply)
