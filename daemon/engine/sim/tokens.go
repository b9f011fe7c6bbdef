package sim

import (
	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// This file has a check of tokens. A copy of a withdrawal or a release may be carried out late, and
// would end the lease of a later request under the same token. So no token is requested again.

// ended is a token that a daemon has withdrawn or released at a store.
type ended struct {
	token
	key    string
	permit bool
}

// asksAnew checks that no op requests a token that this daemon has withdrawn or released.
func (l *link) asksAnew(ops []upstream.Op) {
	if l.ended == nil {
		l.ended = make(map[ended]bool)
	}
	for i := range ops {
		op := &ops[i]
		e := ended{token{l.inst, op.Token}, op.Key, op.Mode == cache.Permit}
		switch op.Kind {
		case cache.OpRelease, cache.OpWithdraw:
			l.ended[e] = true
		case cache.OpTry, cache.OpJoin:
			if l.ended[e] {
				l.h.w.fail("token", op.Key, "host %d asks %s again for token %d, which it has withdrawn or released", l.h.id, l.name, op.Token)
			}
		}
	}
}
