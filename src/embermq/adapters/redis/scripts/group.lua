-- Put a shared group, new or changed. A newer generation replaces everything that an older one left.
-- KEYS: group, positions, claims
-- ARGV: generation, JSON of the group
-- Returns 1; nil when the store has a newer generation.
local call = redis.call
local text = call('GETRANGE', KEYS[1], 0, 40)
if text ~= '' then
  local held = tonumber(string.match(text, '^{"generation":(%d+),'))
  if not held then
    return redis.error_reply('BROKEN ' .. KEYS[1] .. ' does not begin with its generation')
  end
  if held > tonumber(ARGV[1]) then
    return false
  end
  if held < tonumber(ARGV[1]) then
    call('UNLINK', KEYS[2], KEYS[3])
  end
end
call('SET', KEYS[1], ARGV[2])
return 1
