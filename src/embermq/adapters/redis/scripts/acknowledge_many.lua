-- Stored messages of one client are done, or dropped: they go. One that has taken the packet id since is left.
-- KEYS: session, messages, sent, released
-- ARGV: fence, beginning of payload keys, then for each message: packet id (0: not known), place in the queue
-- Returns how many went; nil when the session is another's.
local call = redis.call
local fence = ARGV[1]
if call('GETRANGE', KEYS[1], 0, #fence - 1) ~= fence then
  return false
end
local prefix = ARGV[2]
local keys = {}
for at = 3, #ARGV, 2 do
  keys[#keys + 1] = prefix .. ARGV[at]
end
local scores = call('ZMSCORE', KEYS[2], unpack(keys))
local gone, ids, strays = {}, {}, {}
for i = 1, #keys do
  local key, id, place = keys[i], ARGV[2 * i + 1], ARGV[2 * i + 2]
  if not scores[i] or tonumber(scores[i]) ~= tonumber(place) then
    key = call('ZRANGE', KEYS[2], place, place, 'BYSCORE')[1]
    if key then
      id = string.sub(key, #prefix + 1)
    elseif not scores[i] then
      strays[#strays + 1] = id
    end
  end
  if key then
    gone[#gone + 1] = key
    ids[#ids + 1] = id
  end
end
if #gone > 0 then
  call('ZREM', KEYS[2], unpack(gone))
  call('DEL', unpack(gone))
  if call('HDEL', KEYS[3], unpack(ids)) < #ids then
    call('SREM', KEYS[4], unpack(ids))
  end
end
if #strays > 0 then -- a script that met keys on their way to another node may have left halves
  for i = 1, #strays do
    call('DEL', prefix .. strays[i])
  end
  call('HDEL', KEYS[3], unpack(strays))
  call('SREM', KEYS[4], unpack(strays))
end
return #gone
