-- Parked messages of one client, by number.
-- KEYS: session, parked
-- ARGV: fence, bytes of records at most (the message that reaches them is the last one), numbers
-- Returns the JSON of each that was looked at, nil where there is none; nil when the session is another's.
local call = redis.call
local fence = ARGV[1]
if call('GETRANGE', KEYS[1], 0, #fence - 1) ~= fence then
  return false
end
local left, found = tonumber(ARGV[2]), {}
for at = 3, #ARGV do
  local value = call('HGET', KEYS[2], ARGV[at])
  found[#found + 1] = value
  left = left - (value and tonumber(string.match(value, '"record_bytes":(%d+)')) or 0)
  if left <= 0 then
    break
  end
end
return found
