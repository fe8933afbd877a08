-- Records of messages.
-- KEYS: bodies
-- ARGV: bytes at most (the record that reaches them is the last one), then the numbers of the messages
-- Returns the first of them, as many as there is room for; nil for one that is not there.
local call = redis.call
local most, bytes, found = tonumber(ARGV[1]), 0, {}
for i = 2, #ARGV do
  local body = call('HGET', KEYS[1], ARGV[i])
  found[#found + 1] = body
  bytes = bytes + (body and #body or 0)
  if bytes >= most then
    break
  end
end
return found
