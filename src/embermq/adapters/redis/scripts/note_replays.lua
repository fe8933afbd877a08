-- Remember which message each replay goes on with.
-- KEYS: replays
-- ARGV: id of a replay, number of its next message; and so on
-- Returns 1. Numbers do not go back. They are compared as texts: they may have more digits than a number of Lua.
local call = redis.call
for i = 1, #ARGV, 2 do
  local known, number = call('HGET', KEYS[1], ARGV[i]) or '', ARGV[i + 1]
  if #known < #number or #known == #number and known < number then
    call('HSET', KEYS[1], ARGV[i], number)
  end
end
return 1
