package tuning

import (
	"context"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/locksidecar/locksidecar/cmd/locksidecar/internal/config"
)

// How many threads run Go code at once (GOMAXPROCS). With more than are needed each
// request that wakes a goroutine wakes a thread to look for work, too: on a small machine
// that costs more than the request, and delays it. So the daemon has one. When that is
// busy it tries twice as many for a moment, and keeps them if more gets done; or at once, if timers
// come late: with something always ready to run, Go's scheduler asks the poller only each ten
// milliseconds, and clients wait as long.

const (
	procsBusy  = 50 * time.Millisecond // between two looks under load
	procsIdle  = time.Second           // and without
	procsCalm  = 2 * time.Second       // for so long fewer have to do, before there are fewer
	procsAgain = 5 * time.Second       // between two trials, at first, when the first was for nothing
	procsMost  = time.Minute           // and at the most
	procsFull  = 0.75                  // of what there are is used: more may be needed
	procsSpare = 0.5                   // of half of them is: half of them will do
	procsGain  = 1.1                   // times as much has to get done with twice as many
	procsLooks = 4                     // so many looks make a trial, and as many come before it
	procsLate  = 4 * time.Millisecond  // a timer that wakes so late, in half of those before
)

// procs decides how many there are.
type procs struct {
	most int
	now  int

	busy   int     // looks in a row that saw them so
	before float64 // rates of work done in these, together
	late   int     // of these, those that saw a timer come late

	trial  int           // looks that are left of it; 0 when there is none
	during float64       // rates in it, together
	pause  time.Duration // before the next
	wait   time.Duration // between the last two

	calm time.Duration // for which half of them would have done
}

// procsSeen is what was seen since the last one.
type procsSeen struct {
	while time.Duration
	used  float64       // processors, as a mean
	rate  float64       // of work done; in whatever unit
	late  time.Duration // for the worst timer
}

// next says how many there should be from now on.
func (p *procs) next(l procsSeen) int {
	p.pause = max(0, p.pause-l.while)
	if p.trial > 0 {
		p.try(l)
		return p.now
	}
	if l.used > procsFull*float64(p.now) && p.pause == 0 && p.now < p.most {
		if p.busy++; p.busy > 1 { // the first is the load's beginning
			p.before += l.rate
		}
		if l.late >= procsLate {
			p.late++
		}
		if p.busy == procsLooks && p.late >= procsLooks/2 {
			p.now, p.busy, p.before, p.late = min(2*p.now, p.most), 0, 0, 0
		} else if p.busy == procsLooks {
			p.now, p.trial, p.during, p.busy, p.late = min(2*p.now, p.most), procsLooks, 0, 0, 0
		}
		p.calm = 0
		return p.now
	}
	p.busy, p.before, p.late = 0, 0, 0
	half := (p.now + 1) / 2
	switch {
	case p.now == 1 || l.used > procsSpare*float64(half):
		p.calm = 0
	default:
		if p.calm += l.while; p.calm >= procsCalm {
			p.now, p.calm = half, 0
		}
	}
	return p.now
}

// try takes in a look at a trial, and ends it with the last. The first does not count.
func (p *procs) try(l procsSeen) {
	if p.trial--; p.trial < procsLooks-1 {
		p.during += l.rate
	}
	if p.trial > 0 {
		return
	}
	if p.during >= procsGain*p.before {
		p.wait = 0
	} else {
		p.now = (p.now + 1) / 2
		p.wait = min(max(2*p.wait, procsAgain), procsMost)
		p.pause = p.wait
	}
	p.before = 0
}

// Threads sets how many threads run Go code at once.
type Threads struct {
	most  int
	fixed bool // they are the user's choice, or there is none

	mu  sync.Mutex
	now int // guarded by mu, as is
	all int // how many ask for all there can be
}

// NewThreads looks at GOMAXPROCS in env.
func NewThreads(env config.Env) *Threads {
	n := runtime.GOMAXPROCS(0)
	v, _ := env("GOMAXPROCS")
	return &Threads{most: n, now: n, fixed: v != "" || n == 1}
}

// set has n, unless all are asked for.
func (t *Threads) set(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.now = n
	t.haveLocked()
}

// Takeover is called with true before a takeover makes clients wait, and with false when they are served again. In
// between the process has all threads that there can be, and no collection begins.
func (t *Threads) Takeover(begins bool) {
	t.askAll(begins)
	if begins {
		holdCollector()
	} else {
		time.AfterFunc(collectLater, letCollector)
	}
}

// askAll has as many as there can be, until it is called with false as often as with true.
func (t *Threads) askAll(all bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if all {
		t.all++
	} else {
		t.all--
	}
	t.haveLocked()
}

func (t *Threads) haveLocked() {
	switch {
	case t.fixed:
	case t.all > 0:
		runtime.GOMAXPROCS(t.most)
	default:
		runtime.GOMAXPROCS(t.now)
	}
}

// Loaded tells how much a daemon has done so far, and how late it was.
type Loaded interface {
	BytesRead() uint64
	TimerLate() time.Duration
}

// FollowLoad has as many as are needed until ctx ends; up to as many as Go chose, which
// is what the machine, or the container's limit, has. A GOMAXPROCS of the user's own is
// left alone. It begins the collections of large heaps, too. It blocks.
func (t *Threads) FollowLoad(ctx context.Context, env config.Env, of Loaded) {
	p := procs{most: t.most, now: 1}
	defer t.set(p.most)
	t.set(p.now)
	timer := time.NewTimer(procsBusy)
	defer timer.Stop()
	heap := newHeap(env)
	began, spent, had := time.Now(), cpuTime(), of.BytesRead()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		if heap.due(time.Now()) {
			t.collect()
			of.TimerLate() // the collection caused the delay, not the load
			began, spent, had = time.Now(), cpuTime(), of.BytesRead()
			timer.Reset(procsBusy)
			continue
		}
		now, cpu, has := time.Now(), cpuTime(), of.BytesRead()
		l := procsSeen{while: now.Sub(began), late: of.TimerLate()}
		l.used, l.rate = float64(cpu-spent)/float64(l.while), float64(has-had)/l.while.Seconds()
		if before := p.now; !t.fixed && p.next(l) != before {
			t.set(p.now)
		}
		began, spent, had = now, cpu, has
		if l.used < 0.1 && p.now == 1 {
			timer.Reset(procsIdle)
		} else {
			timer.Reset(procsBusy)
		}
	}
}

// cpuTime is what this process has used.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
