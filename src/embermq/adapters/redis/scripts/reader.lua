-- Where the reader of a client's application log stands, and what it has above that.
-- KEYS: session, reader
-- ARGV: fence, "1" when the log is another one and all that was known goes, JSON of the place ("" leaves it), then for
--   each mark: offset, JSON
-- Returns 1; nil when the session is another's.
local call = redis.call
local fence = ARGV[1]
if call('GETRANGE', KEYS[1], 0, #fence - 1) ~= fence then
  return false
end
if ARGV[2] == '1' then
  call('DEL', KEYS[2])
end
local STATES = { sent = 1, released = 2, done = 3 }
local place = call('HGET', KEYS[2], 'place')
local before = place and tonumber(string.match(place, '^{"committed":(%d+),')) or 0
for at = 4, #ARGV, 2 do
  local value = ARGV[at + 1]
  local held = call('HGET', KEYS[2], ARGV[at])
  local source = held and string.match(held, '"source":(%-?%d+)}$')
  if source then -- where the record stands was said when it was sent
    value = string.gsub(value, '"source":%-?%d+}$', '"source":' .. source .. '}')
  end
  local state = held and string.match(held, '"state":"(%a+)"')
  local is_again = state and STATES[state] > STATES[string.match(value, '"state":"(%a+)"')]
  if tonumber(ARGV[at]) >= before and not is_again then
    call('HSET', KEYS[2], ARGV[at], value)
  end
end
local committed = tonumber(string.match(ARGV[3], '^{"committed":(%d+),'))
if not committed or committed < before then -- no place, or it is done again: what is below `before` is gone
  return 1
end
call('HSET', KEYS[2], 'place', ARGV[3])
local settled, marks = {}, call('HLEN', KEYS[2]) - 1
if marks > 0 and committed - before <= marks then -- nothing stands below `before`
  for offset = before, committed - 1 do
    settled[#settled + 1] = string.format('%.0f', offset)
  end
elseif marks > 0 then
  for _, field in ipairs(call('HKEYS', KEYS[2])) do
    if field ~= 'place' and tonumber(field) < committed then
      settled[#settled + 1] = field
    end
  end
end
for first = 1, #settled, 1000 do
  call('HDEL', KEYS[2], unpack(settled, first, math.min(first + 999, #settled)))
end
return 1
