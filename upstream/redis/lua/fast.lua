-- Every script contains this part. If all ops simply succeeded, a script answers with a number: the
-- base of the first op, from which the bases of the others follow, or 0. Otherwise its answer is
-- {base, index, code, extra, index, code, extra, …}, with the ops that did not simply succeed. At
-- index 0, extra is a hint for another daemon: its instance, a space and the hint. The answer
-- {message} means that the script changed nothing.
local NOTHELD, REFUSED = 5, 6 -- as in package cache; more are in common.lua
local READERS = 'locksidecar:readers' -- a lock's value while readers hold it
local siblings = string.match(KEYS[1], '^.*:') -- KEYS[1] is a sibling, except in peeks and moves
local CLUSTER = siblings ~= 'locksidecar:{}:'

local function add(out, i, code, extra)
	local n = #out
	out[n + 1], out[n + 2], out[n + 3] = i, code, extra
end

local function refuse(out, i, err) add(out, i, REFUSED, err) end

-- queues returns the locks that have a queue, by index, or nil if there are none. KEYS[at] is the
-- last key before the locks.
local function queues(at, n)
	local names, found = {}, {}
	for i = 1, n do names[i] = siblings .. 'queue:' .. KEYS[at + i] end
	local some = pcall_('exists', unpack(names))
	if some == 0 then return nil end
	for i = 1, n do found[i] = some == n or pcall_('exists', names[i]) ~= 0 end
	return found
end
