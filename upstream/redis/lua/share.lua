-- share carries out tries and joins for shared leases. KEYS and ARGV as in acquire.
local KEYS, ARGV, pcall_ = KEYS, ARGV, redis.pcall
local n = #KEYS - 1
local ttl, least, T = tonumber(ARGV[n + 1]), ARGV[n + 2], n + 3
local fence = KEYS[1]
--@base
--@fast
--@reserve
if err then return {err} end
local waits = stands and queues(1, n)
local out, fresh, sets, later = {base}, {}, {}, nil
for i = 1, n do
	local ok
	if not (waits and waits[i]) then
		ok = pcall_('set', KEYS[i + 1], READERS, 'NX', 'PX', ttl or ARGV[i + T])
	end
	if not ok then
		later = later or {}
		later[#later + 1] = i
	elseif ok.err then
		refuse(out, i, ok.err)
	else
		fresh[#fresh + 1] = i
		sets[#sets + 1] = siblings .. 'readers:' .. KEYS[i + 1]
	end
end
if #fresh > 0 then
	pcall_('del', unpack(sets)) -- readers of an earlier time
	local t = redis.call('time')
	local now = t[1] * 1000 + math.floor(t[2] / 1000)
	for j, i in ipairs(fresh) do
		local ms = ttl or tonumber(ARGV[i + T])
		local ok = pcall_('zadd', sets[j], string.format('%.0f', now + ms), ARGV[i])
		if type(ok) == 'table' then add(out, i, 0, ok.err) end
		pcall_('pexpire', sets[j], ms + 1000)
	end
end
if not later then return #out > 1 and out or base end
--@slow
local lease, kinds = string.match(ARGV[T] or '3000', '^(%d+)(%a*)')
for _, i in ipairs(later) do
	local key, token = KEYS[i + 1], ARGV[i]
	local ms = ttl or tonumber(ARGV[i + T])
	local kind = string.sub(kinds, i, i)
	local try = kind == 't'
	each(out, i, function()
		local v, again = value(key), false
		if v == token then return try and BUSY or QUEUED, left(key) end -- exclusive
		if v and mine(v) then
			if number(v) > number(token) then return BUSY, left(key) end -- a later token of ours has it
			write('del', key) -- a pending release of ours; the daemon has a new token
			v = false
		elseif v == READERS then
			again = score(readers(key), token)
			if not again then older(key, token) end
		end
		local queued = waits and waits[i]
		if queued then bury(key) end -- a writer that has ended must not keep a reader waiting
		local q = queued and queue(key, token) or {}
		local free = not v or v == READERS
		if again or free and not writer(key, q, not try and 's' .. token) then
			if not v then write('del', readers(key)) end -- readers of an earlier time
			read(key, token, ms, v)
			if not queued then return nil end
			leave(key, 's' .. token)
			if not v then wake(key, READERS) end
			return GRANTED + wanted(key), 0
		end
		if try then
			if queued then
				leave(key, 's' .. token)
				if not v then wake(key, v) end
			end
			return BUSY + (q.first and WANTED or 0), left(key)
		end
		join(key, 's' .. token, v, q, tonumber(lease), kind == 'b' and 't' or 'w', base + i - 1)
		return QUEUED, left(key)
	end)
end
return out
