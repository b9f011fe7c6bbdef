-- What every script begins with. One that simply did what it was asked for answers with a number:
-- the base of the first op (the others count on from it), or 0. Otherwise its answer is
-- {base, index, code, extra, index, code, extra, …} with only those ops that did not simply
-- succeed. Index 0 is for somebody else: its extra is an instance, a space and the hint for it.
-- {message} means that nothing at all was done.
local NOTHELD, REFUSED = 5, 6 -- these, and those in the second part, are cache's
local READERS = 'locksidecar:readers' -- a lock's value while readers hold it
local siblings = string.match(KEYS[1], '^.*:') -- but for peeks and moves, KEYS[1] is one of them
local CLUSTER = siblings ~= 'locksidecar:{}:'

local function add(out, i, code, extra)
	local n = #out
	out[n + 1], out[n + 2], out[n + 3] = i, code, extra
end

local function refuse(out, i, err) add(out, i, REFUSED, err) end

-- queues says for which locks somebody queues, if for any. KEYS[at] is the last before the locks.
local function queues(at, n)
	local names, found = {}, {}
	for i = 1, n do names[i] = siblings .. 'queue:' .. KEYS[at + i] end
	local some = pcall_('exists', unpack(names))
	if some == 0 then return nil end
	for i = 1, n do found[i] = some == n or pcall_('exists', names[i]) ~= 0 end
	return found
end
