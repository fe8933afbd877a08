-- What one client has under way from logs of shared subscriptions.
-- KEYS: session, shared
-- ARGV: fence, then for each: field, what changes, what stays as it was when it was sent, the message; the second ""
--   takes it away
-- Returns 1; nil when the session is another's.
local call = redis.call
local fence = ARGV[1]
if call('GETRANGE', KEYS[1], 0, #fence - 1) ~= fence then
  return false
end
for at = 2, #ARGV, 4 do
  local field = ARGV[at]
  if ARGV[at + 1] == '' then
    call('HDEL', KEYS[2], field)
  else
    local held, change = call('HGET', KEYS[2], field), ARGV[at + 1]
    local order = held and string.match(held, '^{"order":(%d+),')
    local sent = held and string.match(held, ',"retain":%a+,"identifiers":%[[%d,]*%]')
    local is_again = held and string.match(held, '^{"order":%d+,"packet_id":%d+,"state":"released"')
      and string.find(change, '"state":"sent"', 1, true) -- before what followed it is done again, too
    if not is_again then
      order = order or string.format('%.0f', call('HINCRBY', KEYS[2], 'last', 1))
      call('HSET', KEYS[2], field, '{"order":' .. order .. change .. (sent or ARGV[at + 2]) .. ARGV[at + 3] .. '}')
    end
  end
end
if call('HLEN', KEYS[2]) == 1 then -- only the count is left
  call('DEL', KEYS[2])
end
return 1
