-- The log does not have to be read for a deleted queue any more: what is left of it goes, unless it was made anew.
-- KEYS: queue
-- ARGV: what is left
-- Returns how much went.
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
