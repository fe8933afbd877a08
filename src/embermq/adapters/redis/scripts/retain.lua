-- The retained message of a topic, or that it has none: what is of a later position stays.
-- KEYS: retained
-- ARGV: position, JSON ("" deletes)
-- Returns 1, 0 when there is a later one.
local call = redis.call
local held = call('LINDEX', KEYS[1], 0)
if held then
  local offset = string.match(held, '^{"offset":(%d+),')
  if not offset then
    return redis.error_reply('BROKEN ' .. KEYS[1] .. ' does not begin with its offset')
  end
  if tonumber(offset) > tonumber(ARGV[1]) then
    return 0
  end
end
if ARGV[2] == '' then
  call('DEL', KEYS[1])
elseif held then
  call('LSET', KEYS[1], 0, ARGV[2])
else
  call('RPUSH', KEYS[1], ARGV[2])
end
return 1
