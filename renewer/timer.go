package renewer

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/cache"
)

// Timer is the one goroutine that waits until something is due: renewals, ends of waits, ends of
// leases. Its sleep counts the time for which the machine is suspended.
type Timer struct {
	fire   func() int64
	next   atomic.Int64 // when the goroutine will wake; written with mu held
	worst  atomic.Int64 // its longest delay since the last call of Worst
	since  atomic.Int64 // when the present call of fire began; Forever without one
	mu     sync.Mutex   // makes the alarm follow next
	firing bool         // the alarm is not needed: run checks next before it sleeps; guarded by mu
	closed atomic.Bool
	alarm  alarm
	wg     sync.WaitGroup
	gate   sync.Mutex // held while fire runs, and between Pause and Resume
}

// NewTimer starts the goroutine. The goroutine calls fire, which does the work that is due and
// returns when it has to be called next; cache.Forever for never.
func NewTimer(fire func() int64) (*Timer, error) {
	a, err := newAlarm()
	if err != nil {
		return nil, err
	}
	t := &Timer{fire: fire, alarm: a}
	t.next.Store(cache.Forever)
	t.since.Store(cache.Forever)
	t.wg.Go(t.run)
	return t, nil
}

// Wake makes the timer fire at the given time if it would sleep longer. It does not block.
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

// Late returns for how long the present call of fire has lasted, or for how long the next one is
// overdue. It is far below a second unless something blocks the timer.
func (t *Timer) Late() time.Duration {
	return time.Duration(max(0, Boottime()-min(t.next.Load(), t.since.Load())))
}

// Worst returns the longest delay since the last call of Worst. Delays of more than a second do not
// count: the machine was suspended, or Wake was called with a time that had long passed.
func (t *Timer) Worst() time.Duration { return time.Duration(t.worst.Swap(0)) }

// Pause waits until the present call of fire has returned. There is no other call before Resume.
func (t *Timer) Pause() { t.gate.Lock() }

// Resume ends a Pause.
func (t *Timer) Resume() { t.gate.Unlock() }

// Close ends the goroutine and waits for it.
func (t *Timer) Close() {
	t.closed.Store(true)
	t.alarm.close()
	t.wg.Wait()
}

func (t *Timer) run() {
	for t.alarm.wait() {
		if late := Boottime() - t.next.Load(); late > t.worst.Load() && late < int64(time.Second) {
			t.worst.Store(late)
		}
		for !t.closed.Load() && t.again() {
			t.gate.Lock()
			next := t.fire()
			t.gate.Unlock()
			t.Wake(next)
		}
	}
}

// again reports whether something is due now. If not, it sets the alarm.
func (t *Timer) again() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	at := t.next.Load()
	now := Boottime()
	t.since.Store(cache.Forever)
	if t.firing = at <= now; t.firing {
		t.since.Store(now)
		t.next.Store(cache.Forever) // work that is found from here on calls Wake
	} else if at != cache.Forever {
		t.alarm.set(at)
	}
	return t.firing
}
