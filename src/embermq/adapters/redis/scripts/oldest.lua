-- Places, sizes and positions of the oldest queued messages of one client; what is in flight is not among them.
-- KEYS: session, messages, sent, released
-- ARGV: fence, length of the beginning of payload keys, place behind which to begin, messages at most
-- Returns place, bytes of the record and log position of each, 0 and -1 where it has expired; nil when the session is another's.
local call = redis.call
local fence = ARGV[1]
if call('GETRANGE', KEYS[1], 0, #fence - 1) ~= fence then
  return false
end
local begin, after, limit = tonumber(ARGV[2]) + 1, ARGV[3], tonumber(ARGV[4])
local BYTES_AT, CHUNK = 41, 256
local in_flight = call('EXISTS', KEYS[3], KEYS[4]) > 0
local found = {}
while true do
  local chunk = math.min(limit - #found / 3, CHUNK)
  local members = call('ZRANGE', KEYS[2], '(' .. after, '+inf', 'BYSCORE', 'LIMIT', 0, chunk, 'WITHSCORES')
  if #members == 0 then
    return found
  end
  after = members[#members]
  for i = 1, #members, 2 do
    local id = string.sub(members[i], begin)
    if not (in_flight and (call('HEXISTS', KEYS[3], id) == 1 or call('SISMEMBER', KEYS[4], id) == 1)) then
      local text = call('GETRANGE', members[i], BYTES_AT, BYTES_AT + 60)
      local bytes, offset = string.match(text, '^"recordBytes":(%d+),"offset":(-?%d+)')
      found[#found + 1] = members[i + 1]
      found[#found + 1] = bytes or '0'
      found[#found + 1] = offset or '-1'
    end
  end
  if #found / 3 >= limit then
    return found
  end
end
