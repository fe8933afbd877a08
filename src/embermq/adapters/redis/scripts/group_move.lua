-- How far a shared group has come in partitions of its log, and what it has done above that.
-- KEYS: group, positions, claims
-- ARGV: fence, how many partitions, for each: partition, JSON of its positions, the claim that stands where it has come
--   to; then for each claim: partition, offset, the claim
-- Returns 1; nil when the group is another's.
local call = redis.call
local fence = ARGV[1]
if call('GETRANGE', KEYS[1], 0, #fence - 1) ~= fence then
  return false
end
local claims_at = 3 + 3 * tonumber(ARGV[2])
for at = claims_at, #ARGV, 3 do
  local place = call('HGET', KEYS[2], ARGV[at])
  local committed = place and tonumber(string.match(place, '^{"committed":(%d+),')) or 0
  if tonumber(ARGV[at + 1]) >= committed then
    call('ZADD', KEYS[3], 0, ARGV[at + 2])
  end
end
for at = 3, claims_at - 1, 3 do
  local place = call('HGET', KEYS[2], ARGV[at])
  local before = place and tonumber(string.match(place, '^{"committed":(%d+),')) or 0
  if tonumber(string.match(ARGV[at + 1], '^{"committed":(%d+),')) >= before then -- else it is done again
    call('HSET', KEYS[2], ARGV[at], ARGV[at + 1])
    call('ZREMRANGEBYLEX', KEYS[3], '[' .. ARGV[at] .. ':', '(' .. ARGV[at + 2])
  end
end
return 1
