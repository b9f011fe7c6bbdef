-- Fence bases, first part: n of them for the counter at fence, larger than every earlier one,
-- than the floor, and than the clock in µs, so that they rise even when the counter was lost.
-- Takes pcall_, fence, n and least, the text of the floor plus 1. Makes base, the first of them, and
-- sure: it is final, and nobody queues here. Otherwise the second part has to follow.
--
-- A script that asks for one lock only may set its queue as only, for both parts to be looked at in
-- one go.
--
-- The counter ends with a q while it may be that somebody queues, so that mostly nobody has to
-- look. It never expires: a clock that was ahead for a while must not end it. In a cluster there
-- is one a slot.
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
