-- Makes writes under their conditions: each on its own, or all of them or none.
--
-- KEYS      of every write its item, then the order of its partition where the table has a sort key, then three
--           for each index that is to lead to it (see indexes.py)
-- ARGV[1]   the batch, as MessagePack (see scripts.py)
-- ARGV[2..] bytes, which MessagePack as Redis speaks it cannot carry; a value {at = n} stands for ARGV[n]
--
-- The answer is MessagePack of {now, outcomes}. An outcome is 1 (made), 0 (refused) or 2 (not made, to be planned
-- anew: the item tells why), or {that, lengths ...} where an item belongs to it; then a second string has the
-- names and values of all items, one after the other.

-- A comparison decides when an item's time is up. Redis removes it so many seconds later: a replica that takes
-- over may have a clock that is ahead.
local MARGIN = 60
-- Later than this is never; Redis counts in milliseconds and would run out of them.
local FAR = 1e10
-- Entries of indexes stay so much longer than their items, and for half of that items count on them: most writes
-- put the end off, and not all of them are to tell the indexes.
local KEEP = 86400
-- A write looks at so many of the first entries of its partition, and removes those whose items are gone.
local SWEEP = 2
-- An entry removes at most so many of those in its index that have ended.
local OVER = 10

local call = redis.call
local batch = cmsgpack.unpack(ARGV[1])
local writes = batch.writes

local now = batch.now
if not now then
  local time = call('TIME')
  now = time[1] + time[2] / 1e6
end

if batch.late and now > batch.late then
  return redis.error_reply('LATE its indexes were told of it too long ago')
end

-- A value as it is stored. Numbers keep all their digits.
local function text(value)
  if type(value) == 'table' then
    if value.at then return ARGV[value.at] end
    value = now + value.seconds
  end
  if type(value) == 'number' then return string.format('%.17g', value) end
  return value
end

local function same(stored, value)
  if not stored then return false end
  if type(value) == 'number' then return tonumber(stored) == value end
  return stored == text(value)
end

-- Whether a condition holds; an item is nil where there is none.
local function holds(condition, item)
  local kind, name, value = condition[1], condition[2], condition[3]
  if kind == 'absent' then
    return not item
  elseif kind == 'all' then
    for place = 1, #name do
      if not holds(name[place], item) then return false end
    end
    return true
  elseif kind == 'any' then
    for place = 1, #name do
      if holds(name[place], item) then return true end
    end
    return false
  elseif not item then
    return false
  elseif kind == 'present' then
    return true
  elseif kind == 'lacks' then
    return not item[name]
  elseif kind == 'equals' then
    return same(item[name], value)
  elseif kind == 'one of' then
    for place = 1, #value do
      if same(item[name], value[place]) then return true end
    end
    return false
  elseif kind == 'past' then
    local moment = tonumber(item[name])
    return moment and moment <= now
  elseif kind == 'at most' then
    return (tonumber(item[name]) or 0) <= value
  elseif kind == 'begins' then
    return item[name] and string.sub(item[name], 1, #value) == value
  end
  return false -- 'never'
end

-- Reads what is there, and says whether the write may be made.
local function allowed(write)
  local flat = call('HGETALL', write.key)
  write.flat = flat
  if #flat > 0 then
    local item = {}
    for place = 1, #flat, 2 do item[flat[place]] = flat[place + 1] end
    local moment = tonumber(item[write.expires])
    if not (moment and moment <= now) then write.item = item end
  end
  if not write.item and (write.make == 'update' or write.make == 'delete') then return false end
  return not write.when or holds(write.when, write.item)
end

-- An addition may make an item, and whether that would have an end is known only here.
local function endless(write)
  local expires = write.expires
  return write.make == 'add' and not (write.item or write.set[expires] or write.once[expires])
end

-- How many milliseconds are left to a moment, and some; nil where it never comes.
local function left(moment)
  local seconds = math.max(moment - now, 0) + MARGIN
  return seconds < FAR and string.format('%.0f', seconds * 1000)
end

local function keep(key, milliseconds)
  if milliseconds then
    call('PEXPIRE', key, milliseconds)
  else
    call('PERSIST', key)
  end
end

-- Enters an item into the order of its partition, which is to outlive it.
local function enter(write, milliseconds)
  local index = write.index
  local before = call('PTTL', index)
  call('ZADD', index, write.score or 0, write.member)
  if not milliseconds or before == -2 or (before >= 0 and before < tonumber(milliseconds)) then
    keep(index, milliseconds)
  end
  for _, member in ipairs(call('ZRANGE', index, 0, SWEEP - 1)) do
    if member ~= write.member and call('EXISTS', index .. ':' .. member) == 0 then
      call('ZREM', index, member)
    end
  end
end

-- Has an index lead to an item that ends then; the index ends with the last of its entries.
local function enlist(entry, moment)
  local at, member = entry[1], entry[2]
  local index, ends, doubts = KEYS[at], KEYS[at + 1], KEYS[at + 2]
  for _, over in ipairs(call('ZRANGEBYSCORE', ends, '-inf', now, 'LIMIT', 0, OVER)) do
    call('ZREM', index, over)
    call('ZREM', ends, over)
    call('HDEL', doubts, over)
  end
  call('ZADD', index, 0, member)
  call('ZADD', ends, 'GT', text(moment + KEEP), member)
  call('HDEL', doubts, member)
  local milliseconds = left(tonumber(call('ZRANGE', ends, -1, -1, 'WITHSCORES')[2]))
  keep(index, milliseconds)
  keep(ends, milliseconds)
  keep(doubts, milliseconds)
end

-- When an item ends that a write leaves.
local function ending(write)
  local moment = write.set[write.expires]
  return tonumber(moment and text(moment) or write.item[write.expires])
end

-- Whether an item would come to a place, or to an age, of which its indexes have not been told.
local function astray(write)
  if write.still then return not holds(write.still, write.item) end
  local kept = write.item and write.item['@']
  if not kept or write.entered or write.make == 'put' or not write.set[write.expires] then return false end
  return ending(write) > (tonumber(kept) or 0)
end

local function store(write, changes)
  if write.entered then
    local moment = ending(write)
    for _, entry in ipairs(write.entries) do enlist(entry, moment) end
    changes['@'] = moment + KEEP / 2
  end
  local words = {}
  for name, value in pairs(changes) do
    words[#words + 1] = name
    words[#words + 1] = text(value)
  end
  if changes[write.expires] then
    local milliseconds = left(text(changes[write.expires]))
    if write.index then enter(write, milliseconds) end
    call('HSET', write.key, unpack(words))
    keep(write.key, milliseconds)
  elseif #words > 0 then
    call('HSET', write.key, unpack(words))
  end
end

local function add(write)
  local item, changes = write.item or {}, write.set
  for name, value in pairs(write.once) do
    if not (item[name] or changes[name]) then changes[name] = value end
  end
  local counted = changes[write.count] and text(changes[write.count]) or item[write.count]
  changes[write.count] = (tonumber(counted) or 0) + write.by
  store(write, changes)
end

-- Makes the write, and gives the item where it is asked for.
local function made(write)
  local kind, key = write.make, write.key
  if #write.flat > 0 and (kind == 'put' or kind == 'delete' or not write.item) then call('DEL', key) end
  if kind == 'delete' then
    if write.index then call('ZREM', write.index, write.member) end
  elseif kind == 'add' then
    add(write)
  else
    store(write, write.set)
  end
  if kind ~= 'put' and #write.gone > 0 then call('HDEL', key, unpack(write.gone)) end
  -- Without leave to publish, waiters poll.
  redis.pcall(batch.publish, key, '')
  return kind == 'add' and call('HGETALL', key)
end

local outcomes, strings = {}, {}

local function answer(outcome, flat)
  if flat and #flat > 0 then
    outcome = {outcome}
    local last = #strings
    for place = 1, #flat do
      outcome[place + 1] = #flat[place]
      strings[last + place] = flat[place]
    end
  end
  outcomes[#outcomes + 1] = outcome
end

local function refuse(write)
  -- A refusal is confirmed by replicas as a write is, and for that it has to be one: the claim that it shows may
  -- be the caller's own, of which no replica knows yet.
  if batch.confirm and write.item then call('HSET', write.key, write.flat[1], write.flat[2]) end
  answer(0, write.item and write.flat)
end

local position = 0
for place = 1, #writes do
  local write = writes[place]
  write.set, write.gone, write.once = write.set or {}, write.gone or {}, write.once or {}
  write.entries = write.entries or {}
  if write.make ~= 'enter' then
    position = position + 1
    write.key = KEYS[position]
  end
  if write.member then
    position = position + 1
    write.index = KEYS[position]
  end
  position = position + 3 * #write.entries
end

local NO_END = redis.error_reply('NOEND an item would have no end')

if batch.together then
  local all, sure = true, true
  for place = 1, #writes do
    local write = writes[place]
    write.granted = allowed(write)
    all = all and write.granted
    if write.granted and endless(write) then return NO_END end
    write.astray = write.granted and astray(write)
    sure = sure and not write.astray
  end
  for place = 1, #writes do
    local write = writes[place]
    if not write.granted then
      refuse(write)
    elseif all and write.astray then
      answer(2, write.item and write.flat)
    else
      if all and sure then made(write) end
      answer(1)
    end
  end
else
  -- Who writes to an item after a write that is to be planned anew has to wait for it.
  local waiting = {}
  for place = 1, #writes do
    local write = writes[place]
    if write.make == 'enter' then
      for _, entry in ipairs(write.entries) do enlist(entry, ending(write)) end
      answer(1)
    else
      local granted = allowed(write)
      if granted and endless(write) then return NO_END end
      if waiting[write.key] or (granted and astray(write)) then
        waiting[write.key] = true
        answer(2, write.item and write.flat)
      elseif granted then
        answer(1, made(write))
      else
        refuse(write)
      end
    end
  end
end

local head = cmsgpack.pack({now, outcomes})
if #strings == 0 then return head end
return {head, table.concat(strings)}
