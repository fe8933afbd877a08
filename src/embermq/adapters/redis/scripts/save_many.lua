-- Store messages of one client. What the client has had stored already, acknowledged or not, is left out.
-- KEYS: session, messages, positions, last packet id, sent, released
-- ARGV: fence, beginning of payload keys, floor of positions ("" leaves them), then for each message:
--   place in the queue, position, score of the position, packet id (0: choose one), deadline (Unix ms) of what has none,
--   JSON behind the packet id, JSON of its place when it is sent at once ("" else), which gets the message with it
-- Returns how many were stored; nil when the session is another's.
-- What is sent stays until it is acknowledged: expiry does not stop an exchange that has begun [MQTT-4.3.3-7].
-- A packet id that the broker gives wins: a queued message that has it gets another one.
-- What is seldom needed is defined where it is: a closure costs as much as a command.
local call = redis.call
local fence, prefix = ARGV[1], ARGV[2]
if call('GETRANGE', KEYS[1], 0, #fence - 1) ~= fence then
  return false
end
local HEAD, IDS = '{"packetType":"PUBLISH","packetId":%-5d,', 65535
local head = string.format
if ARGV[3] ~= '' then
  call('ZREMRANGEBYSCORE', KEYS[3], '-inf', '(' .. ARGV[3])
end

local wanted = {}
for at = 5, #ARGV, 7 do
  wanted[#wanted + 1] = ARGV[at]
end
local known = call('ZMSCORE', KEYS[3], unpack(wanted))
local members, positions, sent = {}, {}, {}
local queued, taken = false, false
for i = 1, #wanted do
  if not known[i] then
    local at = 7 * i - 3
    local id = ARGV[at + 3]
    if id == '0' then
      queued = queued or {}
      queued[#queued + 1] = at
    else
      local key, n, place, tail = prefix .. id, #members, ARGV[at + 6], ARGV[at + 5]
      if tail == '' and call('EXISTS', key) == 1 or tail ~= '' and not call('SET', key, head(HEAD, id) .. tail, 'NX') then
        taken = taken or {}
        taken[#taken + 1] = at
      end
      members[n + 1], members[n + 2] = ARGV[at], key
      positions[n + 1], positions[n + 2] = ARGV[at + 2], ARGV[at + 1]
      if tail ~= '' then
        place = string.sub(place, 1, -2) .. ',"message":' .. head(HEAD, id) .. tail .. '}'
      end
      sent[n + 1], sent[n + 2] = id, place
    end
  end
end

if taken or queued then
  local last = tonumber(call('GET', KEYS[4]) or 0)
  local in_flight = #sent > 0 or call('EXISTS', KEYS[5], KEYS[6]) > 0
  -- The payload of what is in flight may have expired: its packet id is not free all the same.
  local function is_in_flight(id)
    return in_flight and (call('HEXISTS', KEYS[5], id) == 1 or call('SISMEMBER', KEYS[6], id) == 1)
  end
  if #sent > 0 then
    call('HSET', KEYS[5], unpack(sent))
  end
  for i = 1, taken and #taken or 0 do
    local at = taken[i]
    local key, free = prefix .. ARGV[at + 3]
    for _ = 1, IDS do
      last = last % IDS + 1
      if not is_in_flight(last) and call('RENAMENX', key, prefix .. last) == 1 then
        free = prefix .. last
        break
      end
    end
    if not free then
      error('no packet id is free')
    end
    call('SETRANGE', free, 35, head('%-5d', last))
    local score = call('ZSCORE', KEYS[2], key)
    if score then
      call('ZREM', KEYS[2], key)
      call('ZADD', KEYS[2], score, free)
    end
    call('SREM', KEYS[6], ARGV[at + 3])
    if ARGV[at + 5] ~= '' then
      call('SET', key, head(HEAD, ARGV[at + 3]) .. ARGV[at + 5])
    end
  end
  for i = 1, queued and #queued or 0 do
    local at = queued[i]
    local key
    for _ = 1, IDS do
      last = last % IDS + 1
      if not is_in_flight(last)
        and call('SET', prefix .. last, head(HEAD, last) .. ARGV[at + 5], 'NX', 'PXAT', ARGV[at + 4]) then
        key = prefix .. last
        break
      end
    end
    if not key then
      error('no packet id is free')
    end
    local n = #members
    members[n + 1], members[n + 2] = ARGV[at], key
    positions[n + 1], positions[n + 2] = ARGV[at + 2], ARGV[at + 1]
  end
  call('SET', KEYS[4], last)
elseif #sent > 0 then
  call('HSET', KEYS[5], unpack(sent))
end
if #members > 0 then
  call('ZADD', KEYS[2], unpack(members))
  call('ZADD', KEYS[3], unpack(positions))
end
return #members / 2
