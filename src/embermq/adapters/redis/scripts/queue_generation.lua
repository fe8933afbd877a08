-- Generations of queues below this one may be in use.
-- KEYS: generation
-- ARGV: the next one
-- Returns 1. It never goes back.
if tonumber(redis.call('GET', KEYS[1]) or 0) < tonumber(ARGV[1]) then
  redis.call('SET', KEYS[1], ARGV[1])
end
return 1
