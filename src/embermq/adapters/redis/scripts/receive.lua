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
local upto = tonumber(call('HGET', KEYS[2], 'upto') or 0)
if ARGV[2] ~= '' and tonumber(ARGV[2]) > upto then
  call('HSET', KEYS[2], 'upto', ARGV[2])
end
for at = 3, #ARGV, 2 do
  if ARGV[at + 1] == '' then
    call('HDEL', KEYS[2], ARGV[at])
  else
    local offset = string.match(ARGV[at + 1], '^{"offset":(%d+),') -- one that a start found has no message
    if not offset or tonumber(offset) >= upto then -- else it is done again, and may be released since
      call('HSET', KEYS[2], ARGV[at], ARGV[at + 1])
    end
  end
end
return 1
