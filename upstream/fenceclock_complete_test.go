package upstream_test

import (
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/storetest"
)

func TestTheStateOfAFenceClockIsComplete(t *testing.T) {
	now := func() int64 { return int64(time.Hour) }
	c := upstream.NewFenceClock(now)
	c.Floor() // the fade time begins
	c.SawBase(1 << 40)
	c.SawClock(1 << 42)
	storetest.Complete{Root: c,
		Snapshot: func() ([]byte, error) { return c.Leave(), nil },
		Again: func(b []byte) ([]byte, error) {
			next := upstream.NewFenceClock(now)
			err := next.Arrive(b)
			return next.Leave(), err
		},
		LeftOut: map[string]string{
			"upstream.FenceClock.now":     "each process has its own",
			"upstream.FenceClock.earlier": "part of lead there: a reading counts for as long as a new one",
			"upstream.FenceClock.began":   "the next process begins anew",
		},
	}.Check(t)
}
