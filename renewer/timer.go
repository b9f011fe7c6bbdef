package renewer

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/cache"
)

// Timer is the one goroutine that waits for times: of renewals, waits and ends.
// Its sleep counts the time that the machine sleeps.
type Timer struct {
	fire   func() int64
	next   atomic.Int64 // when it means to wake; written with mu held
	worst  atomic.Int64 // how late it has woken at most since Worst was asked
	since  atomic.Int64 // when the call of fire under way began; Forever outside
	mu     sync.Mutex   // keeps next and the alarm alike
	firing bool         // the alarm is not needed: it looks at next before it sleeps; guarded by mu
	closed atomic.Bool
	alarm  alarm
	wg     sync.WaitGroup
	gate   sync.Mutex // held while fire runs, and between Pause and Resume
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
	t.since.Store(cache.Forever)
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

// Late is for how long the timer has been at one call of fire, or overdue for the next: far below
// a second unless something keeps it.
func (t *Timer) Late() time.Duration {
	return time.Duration(max(0, Boottime()-min(t.next.Load(), t.since.Load())))
}

// Worst is how late it has woken at most since Worst was called last. What is later than a second is not
// counted: the machine slept, or a time was asked for that had long passed.
func (t *Timer) Worst() time.Duration { return time.Duration(t.worst.Swap(0)) }

// Pause waits until the call of fire under way has returned; none comes before Resume.
func (t *Timer) Pause() { t.gate.Lock() }

// Resume is the end of Pause.
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

// again says whether there is something to do by now; if not, the alarm is set.
func (t *Timer) again() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	at := t.next.Load()
	now := Boottime()
	t.since.Store(cache.Forever)
	if t.firing = at <= now; t.firing {
		t.since.Store(now)
		t.next.Store(cache.Forever) // whoever finds something to do from here on wakes us
	} else if at != cache.Forever {
		t.alarm.set(at)
	}
	return t.firing
}
