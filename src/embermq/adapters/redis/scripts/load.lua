-- What is kept of one client, for the start.
-- KEYS: session, subscriptions, receiving, messages, positions
-- Returns the session, subscriptions as field and value, packet ids that are received, the end of the log up to which
-- these are complete, stored messages, bytes of their records, the
-- last place, the newest position with its score. The last place counts what is done and still remembered: a retained
-- message is known by its place alone, and another one there would be taken for it.
local call = redis.call
local BYTES_AT = 41
local count = call('ZCARD', KEYS[4])
local bytes, last = 0, '0'
if count > 0 then
  local members = call('ZRANGE', KEYS[4], 0, -1)
  last = call('ZSCORE', KEYS[4], members[#members])
  for i = 1, #members do
    local text = call('GETRANGE', members[i], BYTES_AT, BYTES_AT + 34)
    bytes = bytes + tonumber(string.match(text, '^"recordBytes":(%d+)') or 0)
  end
end
local positions = call('ZRANGE', KEYS[5], 0, -1)
for i = 1, #positions do
  local place = string.match(positions[i], ':([%d.]+)$')
  if place and tonumber(place) > tonumber(last) then
    last = place
  end
end
return { call('GET', KEYS[1]), call('HGETALL', KEYS[2]), call('HKEYS', KEYS[3]), call('HGET', KEYS[3], 'upto'), count, bytes, last,
  call('ZRANGE', KEYS[5], 0, 0, 'REV', 'WITHSCORES') }
