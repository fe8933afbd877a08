-- Subscriptions of one client come and go.
-- KEYS: session, subscriptions
-- ARGV: fence, then for each: filter, JSON ("" takes it away)
-- Returns 1; nil when the session is another's.
local call = redis.call
local fence = ARGV[1]
if call('GETRANGE', KEYS[1], 0, #fence - 1) ~= fence then
  return false
end
for at = 2, #ARGV, 2 do
  if ARGV[at + 1] == '' then
    call('HDEL', KEYS[2], ARGV[at])
  else
    call('HSET', KEYS[2], ARGV[at], ARGV[at + 1])
  end
end
return 1
