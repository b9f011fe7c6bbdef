-- permitrenew restarts the TTLs of permits. KEYS: queued, the set of each permit's semaphore;
-- before them fence, if any permit needs a new base. ARGV: as in renew.
local KEYS, ARGV, pcall_ = KEYS, ARGV, redis.pcall
--@fast
local bases = string.sub(KEYS[1], -5) == 'fence'
local K = bases and 2 or 1
local n = #KEYS - K
local T, ttl = bases and n + 3 or n + 1, tonumber(ARGV[n + 1])
local t, stands = pcall_('time'), pcall_('exists', KEYS[K])
if t.err then return {t.err} end
if type(stands) == 'table' then return {stands.err} end
local clock = t[1] * 1000 + math.floor(t[2] / 1000)
local out, renewed = {0}, {}

-- longer makes a set exist for at least ms more. It is the first write for a permit: it needs no
-- memory, and Redis does not stop a script that has written for lack of memory (see renew).
local gt = true
local function longer(set, ms)
	local ok
	if gt then -- since Redis 7
		ok = pcall_('pexpire', set, ms, 'GT')
		gt = type(ok) == 'number'
	end
	if not gt then
		ok = pcall_('pttl', set)
		if type(ok) == 'number' then ok = pcall_('pexpire', set, math.max(ok, ms)) end
	end
	return type(ok) == 'table' and ok.err
end

local set, lasts
for i = 1, n do
	local ms, fault = ttl or tonumber(ARGV[i + T]), nil
	if KEYS[i + K] ~= set then set, lasts = KEYS[i + K], 0 end
	local ends = pcall_('zscore', set, ARGV[i])
	if type(ends) == 'table' then
		refuse(out, i, ends.err)
	elseif not ends or tonumber(ends) <= clock then
		add(out, i, NOTHELD, 0)
	else
		if ms > lasts then fault = longer(set, ms + 1000) end
		if fault then
			refuse(out, i, fault)
		else
			lasts = math.max(lasts, ms)
			local ok = pcall_('zadd', set, string.format('%.0f', math.max(clock + ms, tonumber(ends))), ARGV[i])
			if type(ok) == 'table' then
				add(out, i, 0, ok.err)
			else
				renewed[i] = true
			end
		end
	end
end
--@rebase
--@semqueues
local waits = stands ~= 0 and semqueues(K)
if not waits then return #out > 1 and out or out[1] end
--@semaphore
for i = 1, n do
	if renewed[i] and waits[KEYS[i + K]] then
		local ok, w = pcall(function()
			local s = see(KEYS[i + K])
			s.wanted = s.wanted or wanted(s)
			return s.wanted
		end)
		if ok and w > 0 then add(out, i, DONE + w, 0) end
	end
end
wakeall()
return out
