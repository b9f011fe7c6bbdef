package renewer

import (
	"sync"
	"sync/atomic"

	"github.com/locksidecar/locksidecar/cache"
)

// Timer is the one goroutine that waits for times: of renewals, waits and ends.
// Its sleep counts the time that the machine sleeps.
type Timer struct {
	fire   func() int64
	next   atomic.Int64 // when it means to wake; written with mu held
	mu     sync.Mutex   // keeps next and the alarm alike
	firing bool         // the alarm is not needed: it looks at next before it sleeps; guarded by mu
	closed atomic.Bool
	alarm  alarm
	wg     sync.WaitGroup
}

// NewTimer starts the goroutine. It calls fire, which does what is due and
// returns when it wants to be called next; cache.Forever for not at all.
func NewTimer(fire func() int64) (*Timer, error) {
	a, err := newAlarm()
	if err != nil {
		return nil, err
	}
	t := &Timer{fire: fire, alarm: a}
	t.next.Store(cache.Forever)
	t.wg.Go(t.run)
	return t, nil
}

// Wake makes the timer fire at the time given if it would sleep longer. It does
// not block.
func (t *Timer) Wake(at int64) {
	if at >= t.next.Load() {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if at < t.next.Load() {
		t.next.Store(at)
		if !t.firing {
			t.alarm.set(at)
		}
	}
}

// Close ends the goroutine and waits for it.
func (t *Timer) Close() {
	t.closed.Store(true)
	t.alarm.close()
	t.wg.Wait()
}

func (t *Timer) run() {
	for t.alarm.wait() {
		for !t.closed.Load() && t.again() {
			t.Wake(t.fire())
		}
	}
}

// again says whether there is something to do by now; if not, the alarm is set.
func (t *Timer) again() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	at := t.next.Load()
	if t.firing = at <= Boottime(); t.firing {
		t.next.Store(cache.Forever) // whoever finds something to do from here on wakes us
	} else if at != cache.Forever {
		t.alarm.set(at)
	}
	return t.firing
}
