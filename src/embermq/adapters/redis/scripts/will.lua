-- Put the will of a client, or take it back. A client without a kept session may have one.
-- KEYS: session, will
-- ARGV: generation, JSON of the will ("" takes back the one of this generation)
-- Returns 1; nil when the session or the will is of a newer generation.
local call = redis.call
local generation = tonumber(ARGV[1])
local session = string.match(call('GETRANGE', KEYS[1], 0, 63), '^{"epoch":%d+,"generation":(%d+),')
local will = string.match(call('GETRANGE', KEYS[2], 0, 40), '^{"generation":(%d+),')
if ARGV[2] == '' then
  if will and tonumber(will) == generation then
    call('DEL', KEYS[2])
  end
  return 1
end
if (session and tonumber(session) > generation) or (will and tonumber(will) > generation) then
  return false
end
call('SET', KEYS[2], ARGV[2])
return 1
