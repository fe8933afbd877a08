-- Say up to where the data of this server is complete, unless it has lost a mark that was beyond doubt.
-- KEYS: mark
-- ARGV: position, the position that it must know
-- Returns 1; nil when it does not know that.
local held = tonumber(redis.call('GET', KEYS[1]) or 0)
if not held or held < tonumber(ARGV[2]) then
  return false
end
redis.call('SET', KEYS[1], ARGV[1])
return 1
