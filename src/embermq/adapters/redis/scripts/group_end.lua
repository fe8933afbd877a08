-- A shared group ends. What is under way stays with the sessions.
-- KEYS: group, positions, claims
-- ARGV: fence
-- Returns 1; nil when the group is another's, or gone.
local fence = ARGV[1]
if redis.call('GETRANGE', KEYS[1], 0, #fence - 1) ~= fence then
  return false
end
redis.call('UNLINK', unpack(KEYS))
return 1
