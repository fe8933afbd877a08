-- Records of messages that are still there, and whose records are not.
-- KEYS: queue, entries, bodies, delayed
-- ARGV: fence, then for each: sequence or ticket, record
-- Returns 1; nil when the store has another queue.
local call = redis.call
if call('GETRANGE', KEYS[1], 0, #ARGV[1] - 1) ~= ARGV[1] then
  return false
end
for at = 2, #ARGV, 2 do
  if call('HEXISTS', KEYS[2], ARGV[at]) == 1 or call('HEXISTS', KEYS[4], ARGV[at]) == 1 then
    call('HSETNX', KEYS[3], ARGV[at], ARGV[at + 1])
  end
end
return 1
