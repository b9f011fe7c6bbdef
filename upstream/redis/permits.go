package redis

import (
	"fmt"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// permitsKind is in the name of the set of a semaphore's permits; the scripts have it
// too.
const permitsKind = "permits:"

func scriptForPermit(k cache.OpKind) int {
	switch k {
	case cache.OpRelease, cache.OpWithdraw:
		return scriptPermitRelease
	case cache.OpRenew:
		return scriptPermitRenew
	case cache.OpPeek:
		return scriptPermitPeek
	}
	return scriptPermit
}

func validPermit(op *upstream.Op) error {
	switch {
	case op.Kind == cache.OpDowngrade:
		return fmt.Errorf("%w: a permit of a semaphore cannot be downgraded", ErrRefused)
	case op.Limit == 0 && (op.Kind == cache.OpTry || op.Kind == cache.OpJoin):
		return fmt.Errorf("%w: a semaphore has at least one permit", ErrRefused)
	}
	return nil
}

// permits appends what permit.lua takes behind the tokens.
func (b *batch) permits(part []int32) {
	first, floor := &b.ops[part[0]], uint64(0)
	ttl, limit := millis(first.TTL), first.Limit
	sameTTL, sameLimit := true, true
	for _, i := range part {
		op := &b.ops[i]
		floor = max(floor, op.Floor)
		sameTTL = sameTTL && millis(op.TTL) == ttl
		sameLimit = sameLimit && op.Limit == limit
	}
	b.common(sameTTL, ttl)
	b.floor(floor)
	b.common(sameLimit, int64(limit))
	b.kinds(part)
	if !sameTTL {
		for _, i := range part {
			b.number(millis(b.ops[i].TTL))
		}
	}
	if !sameLimit {
		for _, i := range part {
			b.number(int64(b.ops[i].Limit))
		}
	}
}

// common appends what all ops of a call have, or nothing.
func (b *batch) common(same bool, n int64) {
	if same {
		b.number(n)
	} else {
		b.text("")
	}
}
