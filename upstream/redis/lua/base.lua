-- Fence bases, first part: n of them for the counter at fence, larger than every earlier one,
-- than the floor, and than the clock in µs, so that they rise even when the counter was lost.
-- Takes pcall_, fence, n and floor. Makes base, the first of them, and sure: it is final, and
-- nobody queues here. Otherwise the second part has to follow.
--
-- A script that asks for one lock only may set its queue as only, for both parts to be looked at in
-- one go.
--
-- The counter ends with a q while it may be that somebody queues, so that mostly nobody has to
-- look. In a cluster there is a counter a slot, and each ends one to two days after its last
-- base, whatever the clock does meanwhile.
local DAY = 86400000000 -- µs
local base, old, sure, only = nil, nil, false, nil
local t = pcall_('time')
if not t.err then
	local clock, text = t[1] * 1000000 + t[2], nil
	base = clock
	if floor >= clock then
		base = floor + 1
	elseif #t[2] == 6 and t[2] + n <= 1000000 then -- printing large numbers is slow
		text = t[1] .. (n == 1 and t[2] or t[2] + n - 1)
	end
	text = text or string.format('%.0f', base + n - 1)
	if fence == 'locksidecar:{}:fence' then
		old = pcall_('set', fence, text, 'GET')
	else
		old = pcall_('set', fence, text, 'EX', '172800', 'GET')
	end
	if old then
		local last = tonumber(old)
		sure = last and base > last and base - clock < DAY
	else
		sure = base - clock < DAY and pcall_('exists', string.sub(fence, 1, -6) .. 'queued') == 0
	end
end
