-- The next queued messages of one client, in order; what is in flight is not among them.
-- KEYS: session, messages, sent, released
-- ARGV: fence, length of the beginning of payload keys, place behind which to begin, messages at most,
--   bytes of records at most (0: any; the message that reaches them is the last one)
-- Returns place and JSON of each, nil instead of the JSON where the message has expired; nil when the session is
-- another's.
local call = redis.call
local fence = ARGV[1]
if call('GETRANGE', KEYS[1], 0, #fence - 1) ~= fence then
  return false
end
local begin, after, limit, bytes_max = tonumber(ARGV[2]) + 1, ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local BYTES_AT, CHUNK = 42, 32
local in_flight = call('EXISTS', KEYS[3], KEYS[4]) > 0
local found, bytes = {}, 0
while true do
  local chunk = math.min(limit - #found / 2, CHUNK)
  local members = call('ZRANGE', KEYS[2], '(' .. after, '+inf', 'BYSCORE', 'LIMIT', 0, chunk, 'WITHSCORES')
  if #members == 0 then
    return found
  end
  after = members[#members]
  local keys, scores = {}, {}
  if in_flight then
    local ids = {}
    for i = 1, #members, 2 do
      ids[#ids + 1] = string.sub(members[i], begin)
    end
    local sent = call('HMGET', KEYS[3], unpack(ids))
    local released = call('SMISMEMBER', KEYS[4], unpack(ids))
    for i = 1, #ids do
      if not sent[i] and released[i] == 0 then
        keys[#keys + 1], scores[#scores + 1] = members[2 * i - 1], members[2 * i]
      end
    end
  else
    for i = 1, #members, 2 do
      keys[#keys + 1], scores[#scores + 1] = members[i], members[i + 1]
    end
  end
  if #keys > 0 then
    local values = call('MGET', unpack(keys))
    for i = 1, #keys do
      local value = values[i]
      found[#found + 1], found[#found + 2] = scores[i], value
      if value and bytes_max > 0 then
        bytes = bytes + tonumber(string.match(value, '^"recordBytes":(%d+)', BYTES_AT) or #value)
        if bytes >= bytes_max then
          return found
        end
      end
    end
    if #found / 2 >= limit then
      return found
    end
  end
end
