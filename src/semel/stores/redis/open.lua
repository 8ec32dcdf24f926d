-- Stamps what is new, and tells what is stamped.
--
-- KEYS[1]  the stamp
-- ARGV     the environment, the schema, and what slots are shared by, or '' for the default
if redis.call('HSETNX', KEYS[1], 'environment', ARGV[1]) == 1 and ARGV[3] ~= '' then
  redis.call('HSET', KEYS[1], 'slots', ARGV[3])
end
redis.call('HSETNX', KEYS[1], 'schema', ARGV[2])
return redis.call('HMGET', KEYS[1], 'environment', 'schema', 'slots')
