-- All of one shared group, for the start.
-- KEYS: group, positions, claims
-- Returns the group, partitions with their positions, claims.
local call = redis.call
return { call('GET', KEYS[1]), call('HGETALL', KEYS[2]), call('ZRANGE', KEYS[3], 0, -1) }
