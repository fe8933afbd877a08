-- Parked messages of one client come, change and go.
-- KEYS: session, parked
-- ARGV: fence, then for each: what, number, JSON
--   what: "put" all of it; "change" how it begins; "delete" all but how it begins, if it is there; "end" it
-- What is done again, before what followed it is, takes nothing back.
-- Returns 1; nil when the session is another's.
local call = redis.call
local fence = ARGV[1]
if call('GETRANGE', KEYS[1], 0, #fence - 1) ~= fence then
  return false
end
for at = 2, #ARGV, 3 do
  local what, number, value = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  if what == 'put' then
    call('HSETNX', KEYS[2], number, value)
  elseif what == 'end' then
    call('HDEL', KEYS[2], number)
  else
    local held = call('HGET', KEYS[2], number)
    local rest = held and string.find(held, ',"parked_ms":', 1, true)
    local begins = held and string.sub(held, 1, rest)
    local is_again = held and (
      what == 'change' and string.find(begins, '"stage":"deleted"', 1, true)
      or string.find(begins, '"state":"released"', 1, true) and string.find(value, '"state":"sent"', 1, true)
    )
    if held and what == 'change' then
      value = string.sub(value, 1, -2) .. string.sub(held, rest)
    end
    if held and not is_again then
      call('HSET', KEYS[2], number, value)
    end
  end
end
return 1
