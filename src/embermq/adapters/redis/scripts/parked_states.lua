-- How all parked messages of one client begin, deleted ones included.
-- KEYS: session, parked
-- ARGV: fence
-- Returns number and JSON of each; nil when the session is another's.
local call = redis.call
local fence = ARGV[1]
if call('GETRANGE', KEYS[1], 0, #fence - 1) ~= fence then
  return false
end
local found = {}
for _, number in ipairs(call('HKEYS', KEYS[2])) do
  local value = call('HGET', KEYS[2], number)
  local cut = string.find(value, ',"parked_ms":', 1, true)
  found[#found + 1] = number
  found[#found + 1] = cut and string.sub(value, 1, cut - 1) .. '}' or value
end
return found
