-- All fields of a hash of one client.
-- KEYS: session, hash
-- ARGV: fence
-- Returns fields and values; nil when the session is another's.
local fence = ARGV[1]
if redis.call('GETRANGE', KEYS[1], 0, #fence - 1) ~= fence then
  return false
end
return redis.call('HGETALL', KEYS[2])
