-- What is parked for one client, without the messages.
-- KEYS: session, parked
-- ARGV: fence, number behind which to begin, how many at most (0: all, deleted ones included, only how they begin)
-- Returns number and JSON of each, in order; nil when the session is another's.
local call = redis.call
local fence = ARGV[1]
if call('GETRANGE', KEYS[1], 0, #fence - 1) ~= fence then
  return false
end
local after, limit = tonumber(ARGV[2]), tonumber(ARGV[3])
local numbers, found = {}, {}
for _, field in ipairs(call('HKEYS', KEYS[2])) do
  local number = tonumber(field)
  if number > after then
    numbers[#numbers + 1] = number
  end
end
table.sort(numbers)
for _, number in ipairs(numbers) do
  local field = string.format('%.0f', number)
  local value = call('HGET', KEYS[2], field)
  local cut = string.find(value, limit == 0 and ',"parked_ms":' or ',"message":', 1, true)
  if limit == 0 or not string.find(value, '^{"stage":"deleted",') then
    found[#found + 1] = field
    found[#found + 1] = cut and string.sub(value, 1, cut - 1) .. '}' or value
  end
  if limit > 0 and #found >= 2 * limit then
    break
  end
end
return found
