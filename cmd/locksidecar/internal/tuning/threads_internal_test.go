package tuning

import (
	"testing"
	"time"
)

// follow simulates looks samples on a machine on which n processors do at most done(n) work per
// second. The load asks for load.
func (p *procs) follow(t *testing.T, looks int, load float64, done func(n int) float64) (ns []int) {
	t.Helper()
	for range looks {
		did := min(load, done(p.now))
		n := p.next(procsSeen{while: procsBusy, used: float64(p.now) * did / done(p.now), rate: did})
		if n < 1 || n > p.max {
			t.Fatalf("%d of %d", n, p.max)
		}
		ns = append(ns, n)
	}
	return ns
}

func TestProcsFollowTheLoad(t *testing.T) {
	scales := func(n int) float64 { return 100 * float64(n) }
	p := procs{max: 6, now: 1}
	p.follow(t, 100, 50, scales)
	if p.now != 1 {
		t.Fatalf("%d for half the load of one", p.now)
	}
	p.follow(t, 100, 1000, scales)
	if p.now != 6 {
		t.Fatalf("%d for all the load there is", p.now)
	}
	p.follow(t, int(procsCalm/procsBusy), 140, scales)
	if p.now != 3 {
		t.Fatalf("%d for 1.4, after a while", p.now)
	}
	p.follow(t, 4*int(procsCalm/procsBusy), 10, scales)
	if p.now != 1 {
		t.Fatalf("%d for little", p.now)
	}
}

func TestProcsThatDoNotHelpAreGivenBack(t *testing.T) {
	worse := func(n int) float64 { return 100 / float64(n) }
	p := procs{max: 2, now: 1}
	minute := int(time.Minute / procsBusy)
	more := 0
	for _, n := range p.follow(t, 10*minute, 1000, worse) {
		if n > 1 {
			more++
		}
	}
	if p.wait != maxPause || more == 0 || more > 10*minute/100 {
		t.Errorf("more than one in %d of %d looks; the next trial in %v", more, 10*minute, p.wait)
	}
	// The load has changed.
	p.follow(t, 3*minute, 1000, func(n int) float64 { return 100 * float64(n) })
	if p.now != 2 {
		t.Errorf("%d, where two do twice as much", p.now)
	}
}

// If all threads are in use and timers are late, the number grows without a trial. It falls again
// when half of the threads would do.
func TestProcsWhenTimersAreLate(t *testing.T) {
	p := procs{max: 2, now: 1}
	busy := procsSeen{while: procsBusy, used: 0.9, rate: 10, late: procsLate}
	for range procsLooks {
		p.next(busy)
	}
	if p.now != 2 || p.trial != 0 {
		t.Fatalf("%+v", p)
	}
	busy.late = 0
	for range 10 * procsLooks {
		p.next(busy)
	}
	if p.now != 2 {
		t.Fatalf("%+v: half of them would not do", p)
	}
	busy.used = 0.4
	for range procsCalm/procsBusy + 1 {
		p.next(busy)
	}
	if p.now != 1 {
		t.Fatalf("%+v: half of them would do", p)
	}
	busy.used = 0.6 // late, but not for lack of a thread
	busy.late = time.Second
	for range 10 * procsLooks {
		p.next(busy)
	}
	if p.now != 1 {
		t.Fatalf("%+v", p)
	}
}
