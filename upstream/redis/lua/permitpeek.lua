-- permitpeek reports which semaphores have permits in use. KEYS: the sets of semaphores.
local KEYS, ARGV, pcall_ = KEYS, ARGV, redis.pcall
--@fast
local BUSY = 3
local t = pcall_('time')
if t.err then return {t.err} end
local out, clock = {0}, t[1] * 1000 + math.floor(t[2] / 1000)
for i = 1, #KEYS do
	local first = pcall_('zrangebyscore', KEYS[i], string.format('(%.0f', clock), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
	if first.err then
		refuse(out, i, first.err)
	elseif first[2] then
		add(out, i, BUSY, first[2] - clock)
	end
end
return out
