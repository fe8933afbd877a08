-- What an application has not acknowledged and need not any more is written down, as many as a list may have.
-- KEYS: session, unacknowledged
-- ARGV: fence, how many are kept, then `position:why` for each
-- The oldest go first; in front of the others stands `dropped:how many:position`, below which that was.
-- Done again it appends the same once more: readers take each once.
-- Returns 1; nil when the session is another's.
local call = redis.call
local fence, kept = ARGV[1], tonumber(ARGV[2])
if call('GETRANGE', KEYS[1], 0, #fence - 1) ~= fence then
  return false
end
call('RPUSH', KEYS[2], unpack(ARGV, 3))
local over = call('LLEN', KEYS[2]) - kept
if over <= 0 then
  return 1
end
local dropped, below = 0, 0
for _, text in ipairs(call('LRANGE', KEYS[2], 0, over)) do
  local count, to = string.match(text, '^dropped:(%d+):(%d+)$')
  if count then
    dropped, below = dropped + tonumber(count), math.max(below, tonumber(to))
  else
    dropped, below = dropped + 1, math.max(below, tonumber(string.match(text, '^%d+')) + 1)
  end
end
call('LTRIM', KEYS[2], over, -1)
call('LSET', KEYS[2], 0, string.format('dropped:%.0f:%.0f', dropped, below))
return 1
