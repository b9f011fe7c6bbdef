-- This is the first part of making fence bases. It takes n bases from the counter at fence. They
-- are larger than every earlier base and the floor, and at least the clock in µs, so that they rise
-- even if the counter was lost. Input: pcall_, fence, n, and least, the text of the floor plus 1.
-- Output: base, the first base, and sure. If sure is true, base is final and no queue of the slot
-- has entries. Otherwise the second part (reserve.lua) must follow.
--
-- A script for a single lock may set `only` to the name of its queue. The second part then checks
-- the queued mark and this queue in one command.
--
-- The counter ends with a q while a queue of the slot may have entries, so that most calls need no
-- check. It never expires: a clock that was ahead for a while must not end it. A cluster has one
-- counter for each slot.
local base, old, sure, only = least + 0, nil, false, nil
local t = pcall_('time')
if not t.err then
	local clock, text = t[1] * 1000000 + t[2], nil
	if base > clock then
		text = n == 1 and least -- printing large numbers is slow
	else
		base = clock
		text = #t[2] == 6 and t[2] + n <= 1000000 and t[1] .. (n == 1 and t[2] or t[2] + n - 1)
	end
	old = pcall_('set', fence, text or string.format('%.0f', base + n - 1), 'GET')
	if old then
		local last = tonumber(old)
		sure = last and base > last
	else
		sure = pcall_('exists', string.sub(fence, 1, -6) .. 'queued') == 0
	end
end
