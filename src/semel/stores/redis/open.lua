-- Stamps what is new, and tells what is stamped.
--
-- KEYS[1]  the stamp
-- ARGV     the environment, the schema
redis.call('HSETNX', KEYS[1], 'environment', ARGV[1])
redis.call('HSETNX', KEYS[1], 'schema', ARGV[2])
return redis.call('HMGET', KEYS[1], 'environment', 'schema')
