-- Add a migrated session, and messages to its queue. What has a place there is left as it is.
-- KEYS: session, messages, last packet id, released
-- ARGV: JSON of the session ("" leaves it), last packet id (0 leaves it), beginning of payload keys, then for each
--   message: packet id, place in the queue, deadline (Unix ms), JSON, "1" when PUBREC has come for it ("" else)
-- Returns how many were added.
local call = redis.call
if ARGV[1] ~= '' then
  call('SET', KEYS[1], ARGV[1], 'NX')
end
if ARGV[2] ~= '0' then
  call('SET', KEYS[3], ARGV[2], 'NX')
end
local prefix = ARGV[3]
local added = 0
for at = 4, #ARGV, 5 do
  local key = prefix .. ARGV[at]
  if call('SET', key, ARGV[at + 3], 'NX', 'PXAT', ARGV[at + 2]) then
    call('ZADD', KEYS[2], 'NX', ARGV[at + 1], key)
    if ARGV[at + 4] == '1' then
      call('SADD', KEYS[4], ARGV[at])
    end
    added = added + 1
  end
end
return added
