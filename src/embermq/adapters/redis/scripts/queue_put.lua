-- Rows of one queue come and go, as results: to do it again changes nothing.
-- KEYS: queue, groups, entries, bodies, delayed, marks, progress, dedup ids
-- ARGV: epoch, generation, JSON of the queue ("" leaves it), time before which dedup ids mean nothing, then counted
--   lists: field and value ("" removes it) of groups, of entries, of bodies, of delayed ones, of marks and of progress;
--   ticket and sequence of delayed messages that become entries, which get their bodies; time and dedup id; numbers of
--   groups; and sequences of entries that go with their bodies and marks
-- Returns 1 when this generation was there, 2 when it was not; nil when the store has another one, or a newer epoch.
local call = redis.call
local epoch, generation = ARGV[1], ARGV[2]
local found = 1
if ARGV[3] == '' then
  local fence = '{"epoch":' .. epoch .. ',"generation":' .. generation .. ','
  if call('GETRANGE', KEYS[1], 0, #fence - 1) ~= fence then
    return false
  end
else
  local text = call('GETRANGE', KEYS[1], 0, 63)
  if text == '' then
    found = 2
  else
    local held_epoch, held = string.match(text, '^{"epoch":(%d+),"generation":(%d+),')
    if not held then
      return redis.error_reply('BROKEN ' .. KEYS[1] .. ' does not begin with epoch and generation')
    end
    held_epoch, held = tonumber(held_epoch), tonumber(held)
    if held > tonumber(generation) or (held == tonumber(generation) and held_epoch > tonumber(epoch)) then
      return false
    end
    if held == tonumber(generation) and string.find(text, ',"ended_at":', 1, true) then
      return false -- done again, and it was deleted since
    end
    if held < tonumber(generation) then
      found = 2
      call('UNLINK', unpack(KEYS, 2))
    end
  end
  call('SET', KEYS[1], ARGV[3])
end

local at = 5
local function list()
  local first, last = at + 1, at + tonumber(ARGV[at])
  at = last + 1
  return first, last
end

local function is_behind(field, value) -- done again, before what followed it is: that was done, too
  local held = (field == 'upto' or field == 'moved') and call('HGET', KEYS[7], field)
  return held and tonumber(held) > tonumber(value)
end

local first, last
local gone = {}
for key = 2, 7 do
  local sets = {}
  gone[key] = {}
  first, last = list()
  for i = first, last, 2 do
    if ARGV[i + 1] == '' then
      table.insert(gone[key], ARGV[i])
    elseif not (key == 7 and is_behind(ARGV[i], ARGV[i + 1])) then
      sets[#sets + 1] = ARGV[i]
      sets[#sets + 1] = ARGV[i + 1]
    end
  end
  if #sets > 0 then
    call('HSET', KEYS[key], unpack(sets))
  end
end
first, last = list()
for i = first, last, 2 do
  local body = call('HGET', KEYS[4], ARGV[i])
  if body then -- else this was done before
    call('HSET', KEYS[4], ARGV[i + 1], body)
  end
end
for key = 2, 7 do
  if #gone[key] > 0 then
    call('HDEL', KEYS[key], unpack(gone[key]))
  end
end
first, last = list()
if last > first then
  call('ZADD', KEYS[8], unpack(ARGV, first, last))
  local past = call('ZRANGE', KEYS[8], '-inf', '(' .. ARGV[4], 'BYSCORE', 'LIMIT', 0, last - first + 1)
  if #past > 0 then
    call('ZREM', KEYS[8], unpack(past))
  end
end
local first_group, last_group = list()
first, last = list()
if last >= first then
  call('HDEL', KEYS[3], unpack(ARGV, first, last))
  call('HDEL', KEYS[4], unpack(ARGV, first, last))
  if last_group >= first_group and call('EXISTS', KEYS[6]) == 1 then
    for i = first, last do
      for from = first_group, last_group, 1000 do -- no call takes more than some thousand
        local fields = {}
        for group = from, math.min(from + 999, last_group) do
          fields[#fields + 1] = ARGV[i] .. ':' .. ARGV[group]
        end
        call('HDEL', KEYS[6], unpack(fields))
      end
    end
  end
end
return found
