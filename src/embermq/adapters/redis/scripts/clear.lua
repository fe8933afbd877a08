-- A session ends: it goes with all that it has. Its will is a matter of its own.
-- KEYS: session, subscriptions, receiving, sent, released, messages, last packet id, positions, reader, parked,
--   shared, unacknowledged
-- ARGV: fence
-- Returns how many stored messages went; nil when the session is another's, or gone.
local call = redis.call
local fence = ARGV[1]
if call('GETRANGE', KEYS[1], 0, #fence - 1) ~= fence then
  return false
end
local members = call('ZRANGE', KEYS[6], 0, -1)
for first = 1, #members, 1000 do
  call('UNLINK', unpack(members, first, math.min(first + 999, #members)))
end
call('UNLINK', unpack(KEYS))
return #members
