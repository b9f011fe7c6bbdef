-- permitrelease ends permits and places in the queue.
-- KEYS: queued, the set of each permit's semaphore. ARGV: tokens.
local KEYS, ARGV, pcall_ = KEYS, ARGV, redis.pcall
local n = #KEYS - 1
local t, stands = pcall_('time'), pcall_('exists', KEYS[1])
if t.err then return {t.err} end
if type(stands) == 'table' then return {stands.err} end
--@fast
--@semqueues
local waits = stands ~= 0 and semqueues(1)
local out, later = {0}, nil
local clock = t[1] * 1000 + math.floor(t[2] / 1000)
for i = 1, n do -- usually no token queues, and all permits are held
	local set, ends = KEYS[i + 1], nil
	if not (waits and waits[set]) then ends = pcall_('zscore', set, ARGV[i]) end
	if type(ends) ~= 'string' or tonumber(ends) <= clock or pcall_('zrem', set, ARGV[i]) ~= 1 then
		later = later or {}
		later[#later + 1] = i
	end
end
if not later then return 0 end
--@semaphore
for _, i in ipairs(later) do
	each(out, i, function()
		local s = see(KEYS[i + 1])
		local held, waiting = drop('zrem', s.set, ARGV[i]), s.waiting
		s.held, s.freed, s.left = s.held - held, s.freed + held, nil
		if waiting > 0 and redis.call('zrank', s.queue, ARGV[i]) then
			unqueue(s, ARGV[i])
		elseif held == 0 then
			return NOTHELD, 0
		end
	end)
end
wakeall()
return out
