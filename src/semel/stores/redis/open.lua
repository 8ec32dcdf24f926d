-- Stamps what is new, and tells what is stamped.
--
-- KEYS[1]  the stamp
-- ARGV     the environment, the schema, and what slots are shared by, or '' for what was always so; then the marks
--          of indexes that were added later, which are complete in what is new
local fields = {'environment', 'schema', 'slots'}
for place = 4, #ARGV do fields[place] = ARGV[place] end

if redis.call('HSETNX', KEYS[1], 'environment', ARGV[1]) == 1 then
  if ARGV[3] ~= '' then redis.call('HSET', KEYS[1], 'slots', ARGV[3]) end
  for place = 4, #ARGV do redis.call('HSET', KEYS[1], ARGV[place], 'yes') end
end
redis.call('HSETNX', KEYS[1], 'schema', ARGV[2])
return redis.call('HMGET', KEYS[1], unpack(fields))
