package chaos

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	watchTick = 50 * time.Millisecond
	// standMost is the longest gap between two ticks that a busy machine explains. A longer gap is a
	// standstill.
	standMost = time.Second
	// stepMost is how far the wall clock may move in one tick, compared with the clock since boot. A
	// lease of stormTTL allows for more than twice as much.
	stepMost = 10 * time.Millisecond
)

// standstill is a time in which this program did not run, or in which the wall clock was set.
type standstill struct {
	span
	step time.Duration // how far the wall clock moved, compared with the clock since boot
}

func (s standstill) String() string {
	if s.step != 0 {
		return fmt.Sprintf("the wall clock was moved by %v", s.step.Round(time.Millisecond))
	}
	return fmt.Sprintf("the machine stood still for %.1f s", time.Duration(s.to-s.from).Seconds())
}

// watch ticks, and records each tick that comes much too late. Its goroutine runs from newWatch to
// end.
type watch struct {
	quit, done chan struct{}
	ticked     atomic.Int64 // nanoseconds of patience that have passed: see ran

	mu    sync.Mutex
	found []standstill // guarded by mu
}

func newWatch() *watch {
	w := &watch{quit: make(chan struct{}), done: make(chan struct{})}
	go w.run()
	return w
}

func (w *watch) run() {
	defer close(w.done)
	t := time.NewTicker(watchTick)
	defer t.Stop()
	at, wall, ok := clocks()
	for {
		select {
		case <-w.quit:
			return
		case <-t.C:
		}
		next, nextWall, nextOK := clocks()
		w.tick(at, next)
		if step := time.Duration(nextWall - wall - (next - at)); ok && nextOK && step.Abs() > stepMost {
			w.add(standstill{span{at, next}, step})
		}
		at, wall, ok = next, nextWall, nextOK
	}
}

// tick records that nothing was observed from one moment to another.
func (w *watch) tick(from, to int64) {
	if to-from > int64(standMost) {
		w.add(standstill{span: span{from, to}})
	}
	w.ticked.Add(min(to-from, int64(2*watchTick)))
}

func (w *watch) add(s standstill) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.found = append(w.found, s)
}

// clocks reads the clock since boot and the wall clock at the same moment. ok is false if that was
// not possible.
func clocks() (boot, wall int64, ok bool) {
	for range 10 {
		boot, wall = now(), time.Now().UnixNano()
		if took := now() - boot; took < int64(time.Millisecond) {
			return boot, wall, true
		}
	}
	return boot, wall, false
}

// ran returns for how long this program has run. Patience is measured by this time, so that a pause
// of the machine makes nothing late.
func (w *watch) ran() time.Duration { return time.Duration(w.ticked.Load()) }

// end stops the watch and returns the standstills that it has found.
func (w *watch) end() []standstill {
	close(w.quit)
	<-w.done
	return w.found
}

// patient waits until ok returns true, for at most the time most as measured by w. A nil w waits
// without limit. The longer patient has waited, the longer it pauses: ok may ask a daemon for much.
func (w *watch) patient(most time.Duration, ok func() bool) bool {
	began := time.Now()
	passed := func() time.Duration { return time.Since(began) }
	if w != nil {
		from := w.ran()
		passed = func() time.Duration { return w.ran() - from }
	}
	for !ok() {
		if passed() > most {
			return false
		}
		time.Sleep(min(max(time.Since(began)/20, 20*time.Millisecond), 250*time.Millisecond))
	}
	return true
}

// unmoved has the checks that a standstill cannot make fail. All other checks compare times, or
// wait.
var unmoved = []string{"crash", "leak", "model", "re-entry", "downgrade", "upgrade",
	"all or nothing", "refused", "permits alike",
	"two holders", "too many permits", "fence", "fence order", "fence twice", "lost write"}

// discards returns the reason why an episode with these violations shows nothing, or "". The reason
// is that the machine stood still in it.
func discards(found []standstill, violations []Violation) string {
	if len(found) == 0 || slices.ContainsFunc(violations, func(v Violation) bool {
		return slices.Contains(unmoved, v.Check) || v.Check == "log" &&
			!strings.HasPrefix(v.Text, unexplained)
	}) {
		return ""
	}
	var words []string
	for _, f := range found[:min(len(found), 5)] {
		words = append(words, f.String())
	}
	return strings.Join(words, "; ")
}
