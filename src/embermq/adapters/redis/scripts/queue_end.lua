-- A queue is deleted: it goes with all that it has, and what stays says that the log has nothing new of it.
-- KEYS: queue, groups, entries, bodies, delayed, marks, progress, dedup ids
-- ARGV: fence, what stays
-- Returns 1; nil when the store has another one.
local call = redis.call
if call('GETRANGE', KEYS[1], 0, #ARGV[1] - 1) ~= ARGV[1] then
  return false
end
call('UNLINK', unpack(KEYS, 2))
call('SET', KEYS[1], ARGV[2])
return 1
