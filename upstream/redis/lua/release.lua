-- release ends leases of either mode and places in the queue.
-- KEYS: queued, locks. ARGV: tokens.
local KEYS, ARGV, pcall_, t = KEYS, ARGV, redis.pcall, nil
local n = #KEYS - 1
local v = pcall_('mget', unpack(KEYS))
if v.err then return {v.err} end
if not v[1] then -- no token queues; usually all locks are held exclusively
	local all = true
	for i = 1, n do all = all and v[i + 1] == ARGV[i] end
	if all and pcall_('del', unpack(KEYS, 2)) == n then return 0 end
end
--@fast
local ours, gone, later, out = {}, {}, nil, {0}
for i = 1, n do
	local key, token = KEYS[i + 1], ARGV[i]
	if v[i + 1] == token then
		ours[#ours + 1], gone[#gone + 1] = i, key
	else
		local was, left = 0, nil
		if v[i + 1] == READERS then
			local set = siblings .. 'readers:' .. key
			was = pcall_('zrem', set, token)
			if was == 1 then left = pcall_('exists', set) end
		end
		if type(was) == 'table' then
			refuse(out, i, was.err)
		elseif left == 0 then -- this was the last reader, so the lock ends, too
			ours[#ours + 1], gone[#gone + 1] = i, key
		else
			later = later or {}
			later[#later + 1] = {i, was == 1}
		end
	end
end
if #gone > 0 then
	local ok = pcall_('del', unpack(gone))
	if type(ok) == 'table' then
		for _, i in ipairs(ours) do
			if v[i + 1] == READERS then add(out, i, 0, ok.err) else refuse(out, i, ok.err) end
		end
		ours = {}
	end
end
-- wake reads the queue of a single lock, so queues need not.
local waits = v[1] and (#ours == n and n == 1 and {true} or queues(1, n))
if not later and not waits then return #out > 1 and out or 0 end
--@slow
if waits then
	for _, i in ipairs(ours) do
		if waits[i] then pcall(wake, KEYS[i + 1], false) end
	end
end
for _, l in ipairs(later or {}) do
	local i, found = l[1], l[2]
	local key, token = KEYS[i + 1], ARGV[i]
	each(out, i, function()
		if found then
			dirty = true
			shrink(key)
		end
		if waits and waits[i] then
			found = leave(key, 'x' .. token) or found
			found = leave(key, 's' .. token) or found
			if found then wake(key, value(key)) end
		end
		if found then return nil end
		return NOTHELD, 0
	end)
end
return out
