-- Packet ids of incoming QoS 2 PUBLISHes come and go.
-- KEYS: session, receiving
-- ARGV: fence, end of the log up to which the set is complete with this ("" leaves it), then for each: packet id, JSON
--   of the message with its log position ("" when it was released)
-- Returns 1; nil when the session is another's.
local call = redis.call
local fence = ARGV[1]
if call('GETRANGE', KEYS[1], 0, #fence - 1) ~= fence then
  return false
end
if ARGV[2] ~= '' then
  call('HSET', KEYS[2], 'upto', ARGV[2])
end
for at = 3, #ARGV, 2 do
  if ARGV[at + 1] == '' then
    call('HDEL', KEYS[2], ARGV[at])
  else
    call('HSET', KEYS[2], ARGV[at], ARGV[at + 1])
  end
end
return 1
