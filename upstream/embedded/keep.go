package embedded

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// Leases that last until a given time even if the daemon ends. They are in the state file. A Store
// that finds them there has their keys closed until then, although it does not know their tokens.

// maxKeep is longer than any TTL that a daemon allows.
const maxKeep = 48 * time.Hour

// keptLease is one such lease in the state file.
type keptLease struct {
	Key   string     `json:"key"`
	Mode  cache.Mode `json:"mode"`
	Until int64      `json:"until"` // its end, ns of the boot clock
	// Wall is its end by the wall clock, in ns. TTL is what was left of it when the file was written,
	// in ns. They are for the next boot of the machine, when the boot clock starts again.
	Wall int64 `json:"wall"`
	TTL  int64 `json:"ttl"`
}

// keptID identifies a kept lease of this process. The token does not have sharedBit.
type keptID struct {
	key    string
	token  uint64
	permit bool
}

// leftLease is a lease that an earlier process has left, or that an expired session has. Nothing
// but its end is known of it.
type leftLease struct {
	mode  cache.Mode
	until int64 // ns of the boot clock
}

// keptUntil returns until when op asks for its lease to be kept.
func keptUntil(op *upstream.Op, now int64) int64 {
	return cache.LeaseDeadline(now, int64(op.TTL))
}

// asksToKeep reports whether op asks for its lease to be kept.
func asksToKeep(op *upstream.Op) bool { return op.Kind == cache.OpRenew && op.Stated != 0 }

func idOf(op *upstream.Op) keptID {
	return keptID{op.Key, op.Token, op.Mode == cache.Permit}
}

// keeps reports whether the state file has the lease of op for as long as op asks.
func (r *request) keeps(op *upstream.Op) bool {
	return r.written || r.session.path == "" || r.shard.kept[idOf(op)] >= keptUntil(op, r.now)
}

// unkeep records that a lease has been released. The file is written later: until then, a restart
// keeps the key closed for longer than necessary.
func (r *request) unkeep(op *upstream.Op) {
	if _, was := r.shard.kept[idOf(op)]; was {
		delete(r.shard.kept, idOf(op))
		r.session.dirty.Store(true)
		r.session.wake()
	}
}

// keep writes the leases for which ops asks to the state file.
func (s *Store) keep(ops []upstream.Op) error {
	n := &s.session
	n.io.Lock()
	defer n.io.Unlock()
	now := n.clock()
	before := make([]int64, len(ops))
	for i := range ops {
		if op := &ops[i]; asksToKeep(op) {
			before[i] = s.shard(op.Key).keep(op, keptUntil(op, now))
		}
	}
	err := n.rewrite()
	for i := range ops {
		if op := &ops[i]; err != nil && asksToKeep(op) {
			s.shard(op.Key).keep(op, before[i])
		}
	}
	return err
}

// keep records until when the state file has the lease of op, or 0 if it has not. It returns what
// was recorded before.
func (d *shard) keep(op *upstream.Op, until int64) (before int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	id, held := idOf(op), false
	if op.Mode == cache.Permit {
		if p := d.permits[op.Key]; p != nil {
			_, held = p.held[op.Token]
		}
	} else {
		held = d.held[op.Key]&^sharedBit == op.Token
	}
	if before = d.kept[id]; !held {
		return before // apply will answer that it is not
	}
	if d.kept == nil {
		d.kept = make(map[keptID]int64)
	}
	if d.kept[id] = until; until == 0 {
		delete(d.kept, id)
	}
	return before
}

// rewrite writes the state file with the present leases. The caller holds io.
func (n *session) rewrite() error {
	n.dirty.Store(false)
	until := n.until.Load()
	if n.waiting(n.clock()) > 0 {
		until = n.grace
	}
	err := n.write(until, n.limit.Load())
	if err != nil {
		n.dirty.Store(true)
	}
	return err
}

// keptLeases returns the leases for the state file, in order. The leases of this process last at
// least until the given time. The others were left by an earlier process.
func (s *Store) keptLeases(atLeast int64) (all []keptLease) {
	now, wall := s.session.clock(), s.session.wall().UnixNano()
	add := func(key string, mode cache.Mode, until int64) {
		if until > now {
			all = append(all, keptLease{Key: key, Mode: mode, Until: until, Wall: wall + until - now,
				TTL: until - now})
		}
	}
	for i := range s.shards {
		d := &s.shards[i]
		d.mu.Lock()
		for id, until := range d.kept {
			if until > now {
				add(id.key, d.modeOf(id), max(until, atLeast))
			}
		}
		for key, left := range d.left {
			for _, l := range left {
				add(key, l.mode, l.until)
			}
		}
		d.mu.Unlock()
	}
	slices.SortFunc(all, func(a, b keptLease) int {
		return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.Mode, b.Mode), cmp.Compare(a.Until, b.Until))
	})
	return all
}

// modeOf returns the mode of a kept lease. The caller holds mu.
func (d *shard) modeOf(id keptID) cache.Mode {
	switch {
	case id.permit:
		return cache.Permit
	case d.held[id.key]&sharedBit != 0:
		return cache.Shared
	}
	return cache.Exclusive
}

// leave records a lease whose token is not known any more. The caller holds mu, or is the only one
// with access to d.
func (d *shard) leave(key string, l leftLease, now int64) {
	if l.until <= now {
		return
	}
	if d.left == nil {
		d.left = make(map[string][]leftLease)
	}
	d.left[key] = append(d.left[key], l)
}

// leave records the leases that a state file has.
func (s *Store) leave(all []keptLease, sameBoot bool) {
	now, wall := s.session.clock(), s.session.wall().UnixNano()
	for _, l := range all {
		left := l.Until - now
		if !sameBoot {
			left = l.Wall - wall
		}
		// If a clock was set back, the lease does not last for longer than was left of it.
		s.shard(l.Key).leave(l.Key, leftLease{l.Mode, now + min(left, l.TTL)}, now)
	}
}

func (l *keptLease) check() error {
	if l.Key == "" || l.Mode > cache.Permit || l.Until < 0 || l.TTL < 0 || l.TTL > int64(maxKeep) {
		return fmt.Errorf("the kept lease %+v makes no sense", *l)
	}
	return nil
}

// leftBy returns the number of leases of the op's key that an earlier process has left and that
// exclude the op, and when the last of them ends. It forgets the leases that have ended.
func (r *request) leftBy(key string, mode cache.Mode) (n int, until int64) {
	all := r.shard.left[key]
	if all == nil {
		return 0, 0
	}
	all = slices.DeleteFunc(all, func(l leftLease) bool { return l.until <= r.now })
	if r.shard.left[key] = all; len(all) == 0 {
		delete(r.shard.left, key)
	}
	for _, l := range all {
		if (l.mode == cache.Permit) == (mode == cache.Permit) &&
			(mode != cache.Shared || l.mode != cache.Shared) {
			n, until = n+1, max(until, l.until)
		}
	}
	return n, until
}

// allKept reports whether the state file has all leases. The caller holds io.
func (s *Store) allKept() bool {
	n, now := int64(0), s.session.clock()
	for i := range s.shards {
		d := &s.shards[i]
		d.mu.Lock()
		for _, until := range d.kept {
			if until > now {
				n++
			}
		}
		d.mu.Unlock()
	}
	return n == s.session.held.Load()
}
