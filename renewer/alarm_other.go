//go:build !linux

package renewer

import (
	"sync"
	"time"
)

// alarm is a plain timer for systems without timerfd. After a suspend it notices within a second
// that its time has passed.
type alarm struct{ s *alarmState }

type alarmState struct {
	mu   sync.Mutex
	at   int64
	ring chan struct{}
	done chan struct{}
	tick *time.Ticker
}

func newAlarm() (alarm, error) {
	return alarm{&alarmState{ring: make(chan struct{}, 1), done: make(chan struct{}), at: 1<<63 - 1,
		tick: time.NewTicker(time.Second)}}, nil
}

func (a alarm) set(at int64) {
	a.s.mu.Lock()
	a.s.at = at
	a.s.mu.Unlock()
	select {
	case a.s.ring <- struct{}{}:
	default:
	}
}

func (a alarm) wait() bool {
	for {
		a.s.mu.Lock()
		left := a.s.at - Boottime()
		if left <= 0 {
			a.s.at = 1<<63 - 1
		}
		a.s.mu.Unlock()
		if left <= 0 {
			return true
		}
		t := time.NewTimer(time.Duration(min(left, int64(time.Second))))
		select {
		case <-t.C:
		case <-a.s.ring:
		case <-a.s.tick.C:
		case <-a.s.done:
			t.Stop()
			return false
		}
		t.Stop()
	}
}

func (a alarm) close() { a.s.tick.Stop(); close(a.s.done) }

var start = time.Now().Round(0)

// Boottime uses the wall clock here. It counts the time of a suspend, but steps if the clock is
// set.
func Boottime() int64 { return time.Now().Round(0).Sub(start).Nanoseconds() + int64(time.Hour) }
