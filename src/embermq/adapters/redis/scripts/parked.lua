-- Parked messages of one client, by number.
-- KEYS: session, parked
-- ARGV: fence, bytes of records at most (the message that reaches them is the last one; 0: all, without records), numbers
-- Returns the JSON of each that was looked at, nil where there is none; nil when the session is another's.
local call = redis.call
local fence = ARGV[1]
if call('GETRANGE', KEYS[1], 0, #fence - 1) ~= fence then
  return false
end
local bytes, found = tonumber(ARGV[2]), {}
local left = bytes
for at = 3, #ARGV do
  local value = call('HGET', KEYS[2], ARGV[at])
  local cut = bytes == 0 and value and string.find(value, ',"message":', 1, true)
  found[#found + 1] = cut and string.sub(value, 1, cut - 1) .. '}' or value
  left = left - (value and tonumber(string.match(value, '"record_bytes":(%d+)')) or 0)
  if bytes > 0 and left <= 0 then
    break
  end
end
return found
