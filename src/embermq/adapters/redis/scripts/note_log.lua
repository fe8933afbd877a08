-- Remember how far the message log goes, which generations may be in use, and what time it is.
-- KEYS: log
-- ARGV: end of the log, end of the reserved generations, broker time in ms, whether the run has ended in order ("" leaves that)
-- Returns 1. Numbers do not go back: what is known was told to somebody.
local call = redis.call
local names = { 'end', 'generations', 'time' }
for i = 1, #names do
  if tonumber(call('HGET', KEYS[1], names[i]) or 0) < tonumber(ARGV[i]) then
    call('HSET', KEYS[1], names[i], ARGV[i])
  end
end
if ARGV[4] ~= '' then
  call('HSET', KEYS[1], 'closed', ARGV[4])
end
return 1
