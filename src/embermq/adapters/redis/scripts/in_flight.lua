-- What was sent to one client and is not acknowledged.
-- KEYS: session, messages, sent, released
-- ARGV: fence, beginning of payload keys
-- Returns for each message: packet id, place in the queue (nil when there is none), JSON of its place, or nil when it
-- was released, and its own JSON, nil when it has expired; nil when the session is another's.
local call = redis.call
local fence = ARGV[1]
if call('GETRANGE', KEYS[1], 0, #fence - 1) ~= fence then
  return false
end
local prefix = ARGV[2]
local ids, places = {}, {}
local sent = call('HGETALL', KEYS[3])
for i = 1, #sent, 2 do
  local place = string.match(sent[i + 1], '^(.-),"message":') -- the message itself is read where it is
  ids[#ids + 1], places[#places + 1] = sent[i], place and place .. '}' or sent[i + 1]
end
local released = call('SMEMBERS', KEYS[4])
for i = 1, #released do
  ids[#ids + 1], places[#places + 1] = released[i], false
end
local found = {}
for first = 1, #ids, 1000 do
  local keys = {}
  for i = first, math.min(first + 999, #ids) do
    keys[#keys + 1] = prefix .. ids[i]
  end
  local scores = call('ZMSCORE', KEYS[2], unpack(keys))
  local values = call('MGET', unpack(keys))
  for i = 1, #keys do
    local at = 4 * (first + i - 2)
    found[at + 1], found[at + 2] = ids[first + i - 1], scores[i]
    found[at + 3], found[at + 4] = places[first + i - 1], values[i]
  end
end
return found
