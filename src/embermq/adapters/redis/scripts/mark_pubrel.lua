-- Stored messages of one client move on: sent, with the packet id that the client sees, and from then on without a time
-- to live, since expiry does not stop an exchange that has begun [MQTT-4.3.3-7]; or released by PUBREC. What is done
-- already is left out.
-- KEYS: session, messages, last packet id, sent, released
-- ARGV: fence, beginning of payload keys, then for each message: state (1 sent, 2 released), packet id,
--   place in the queue, JSON of its place when it is sent, which gets the message with it
-- Returns how many were marked; nil when the session is another's.
local call = redis.call
local fence = ARGV[1]
if call('GETRANGE', KEYS[1], 0, #fence - 1) ~= fence then
  return false
end
local prefix = ARGV[2]
local TYPE_AT, PUBREL, ID_AT, IDS = 14, '"PUBREL" ', 35, 65535

local function renumber(key, score, id)
  local renamed = prefix .. id
  if call('EXISTS', key) == 1 then
    call('RENAME', key, renamed)
    call('SETRANGE', renamed, ID_AT, string.format('%-5d', id))
  end
  call('ZREM', KEYS[2], key)
  call('ZADD', KEYS[2], score, renamed)
  call('HDEL', KEYS[4], string.sub(key, #prefix + 1))
  call('SREM', KEYS[5], string.sub(key, #prefix + 1))
end
local function free_id()
  local last = tonumber(call('GET', KEYS[3]) or 0)
  for _ = 1, IDS do
    last = last % IDS + 1
    if call('EXISTS', prefix .. last) == 0 and not call('ZSCORE', KEYS[2], prefix .. last) then
      call('SET', KEYS[3], last)
      return last
    end
  end
  error('no packet id is free')
end

local keys = {}
for at = 3, #ARGV, 4 do
  keys[#keys + 1] = prefix .. ARGV[at + 1]
end
local scores = call('ZMSCORE', KEYS[2], unpack(keys))
local sent, released, marked, renumbered = {}, {}, 0, false
for i = 1, #keys do
  local at = 4 * i - 1
  local key, id, seq = keys[i], ARGV[at + 1], ARGV[at + 2]
  local score = scores[i]
  if renumbered then
    score = call('ZSCORE', KEYS[2], key)
  end
  local is_here = score and tonumber(score) == tonumber(seq)
  if not is_here then
    local member = call('ZRANGE', KEYS[2], seq, seq, 'BYSCORE')[1]
    if member then
      if score then
        renumber(key, score, free_id())
      end
      renumber(member, seq, tonumber(id))
      is_here, renumbered = true, true
    end
  end
  if is_here then
    marked = marked + 1
    if ARGV[at] == '2' then
      released[#released + 1] = id
      if call('EXISTS', key) == 1 then
        call('SETRANGE', key, TYPE_AT, PUBREL)
      end
    elseif call('SISMEMBER', KEYS[5], id) == 0 then
      local place, message = ARGV[at + 3], call('GET', key)
      if message then
        call('PERSIST', key)
        place = string.sub(place, 1, -2) .. ',"message":' .. message .. '}'
      end
      sent[#sent + 1] = id
      sent[#sent + 1] = place
    end
  end
end
if #sent > 0 then
  call('HSET', KEYS[4], unpack(sent))
end
if #released > 0 then
  call('SADD', KEYS[5], unpack(released))
  call('HDEL', KEYS[4], unpack(released))
end
return marked
