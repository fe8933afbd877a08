-- Whether a broker may write here: not when one with a higher epoch has been here.
-- KEYS: epoch
-- ARGV: the epoch of the broker
-- Returns the highest epoch.
local held = tonumber(redis.call('GET', KEYS[1]) or 0)
local own = tonumber(ARGV[1])
if held < own then
  redis.call('SET', KEYS[1], ARGV[1])
  held = own
end
return held
