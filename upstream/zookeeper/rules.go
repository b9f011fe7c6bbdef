package zookeeper

import "github.com/locksidecar/locksidecar/cache"

// place returns the index of the node with our token, or -1.
func place(q []node, sid int64, token uint64) int {
	for i := range q {
		if q[i].ours && q[i].sid == sid && q[i].token == token {
			return i
		}
	}
	return -1
}

// blocker returns the index of the node that the node at index at with this mode has to wait for,
// or -1. An exclusive node waits for the next before it, a shared node for the next exclusive one.
// unsure means that the blocker may have been downgraded, which can be true only of the first in
// the queue.
func blocker(q []node, at int, mode cache.Mode) (before int, unsure bool) {
	if mode == cache.Exclusive {
		return at - 1, false
	}
	for before = at - 1; before >= 0; before-- {
		if !q[before].shared || !q[before].ours {
			break
		}
	}
	return before, before == 0 && q[0].ours
}

// contention reports whether another host waits behind the holder at index at, and whether another
// host tries. A try does not wait, or only for a moment.
func contention(q []node, at int, mode cache.Mode, sid int64) (waits, tries bool) {
	for _, n := range q[at+1:] {
		if n.ours && n.sid == sid || mode == cache.Shared && n.shared {
			continue
		}
		if n.ours && n.try {
			tries = true
		} else {
			return true, tries
		}
	}
	return false, tries
}

// holders returns how many nodes of a queue hold the lock: one, or the readers before the first
// exclusive one. None do if the queue is empty.
func holders(q []node, mode cache.Mode) int {
	n := min(1, len(q))
	for mode == cache.Shared && n < len(q) && q[n].ours && q[n].shared {
		n++
	}
	return n
}
