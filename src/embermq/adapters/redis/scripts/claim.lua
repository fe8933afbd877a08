-- Put a session: its birth, a takeover, a change. A newer generation replaces everything that an older one left.
-- KEYS: session, subscriptions, will, receiving, sent, released, messages, last packet id, positions,
--   reader, parked, shared, unacknowledged
-- ARGV: epoch, generation, JSON of the session
-- Returns 1 when this generation was there, 2 when it was not; nil when the store has a newer generation, or a newer
-- epoch of this one.
local call = redis.call
local epoch, generation = tonumber(ARGV[1]), tonumber(ARGV[2])
local text = call('GETRANGE', KEYS[1], 0, 63)
local found = 2
if text ~= '' then
  local held_epoch, held = string.match(text, '^{"epoch":(%d+),"generation":(%d+),')
  if not held then
    return redis.error_reply('BROKEN ' .. KEYS[1] .. ' does not begin with epoch and generation')
  end
  held_epoch, held = tonumber(held_epoch), tonumber(held)
  if held > generation or (held == generation and held_epoch > epoch) then
    return false
  end
  if held == generation then
    found = 1
  else
    local members = call('ZRANGE', KEYS[7], 0, -1)
    for first = 1, #members, 1000 do
      call('UNLINK', unpack(members, first, math.min(first + 999, #members)))
    end
    call('UNLINK', KEYS[2], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11], KEYS[12], KEYS[13])
    local will = string.match(call('GETRANGE', KEYS[3], 0, 40), '^{"generation":(%d+),')
    if will and tonumber(will) < generation then
      call('DEL', KEYS[3])
    end
  end
end
call('SET', KEYS[1], ARGV[3])
return found
