-- The time of a retained message is over: it goes, unless another one has replaced it.
-- KEYS: retained
-- ARGV: its position
-- Returns 1 when it went.
local held = redis.call('LINDEX', KEYS[1], 0)
if held and string.match(held, '^{"offset":(%d+),') == ARGV[1] then
  redis.call('DEL', KEYS[1])
  return 1
end
return 0
