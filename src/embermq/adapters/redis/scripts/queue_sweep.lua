-- Some of what groups have marked that are gone.
-- KEYS: queue, marks
-- ARGV: fence, where to go on, how many to look at, the number of the next group, then the numbers of those there are
-- Returns where to go on ("0": that was all); nil when the store has another queue.
local call = redis.call
if call('GETRANGE', KEYS[1], 0, #ARGV[1] - 1) ~= ARGV[1] then
  return false
end
local is_there = {}
for i = 5, #ARGV do
  is_there[ARGV[i]] = true
end
local answer = call('HSCAN', KEYS[2], ARGV[2], 'COUNT', ARGV[3])
local found, gone = answer[2], {}
for i = 1, #found, 2 do
  local group = string.match(found[i], ':(%d+)$')
  if group and not is_there[group] and tonumber(group) < tonumber(ARGV[4]) then
    gone[#gone + 1] = found[i]
  end
end
for first = 1, #gone, 1000 do
  call('HDEL', KEYS[2], unpack(gone, first, math.min(first + 999, #gone)))
end
return answer[1]
