-- semqueues returns the semaphores that have a queue, by their sets, or nil if there are none.
-- KEYS[at] is the last key before the sets.
local function semqueues(at)
	local names, sets, set = {}, {}, nil
	for i = at + 1, #KEYS do
		if KEYS[i] ~= set then
			set = KEYS[i]
			sets[#sets + 1] = set
			names[#names + 1] = siblings .. 'permitqueue:' .. string.sub(set, #siblings + 9)
		end
	end
	if pcall_('exists', unpack(names)) == 0 then return nil end
	local found = {}
	for j = 1, #sets do found[sets[j]] = #sets == 1 or pcall_('exists', names[j]) ~= 0 end
	return found
end
