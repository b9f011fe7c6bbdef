package tuning

import (
	"context"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/locksidecar/locksidecar/cmd/locksidecar/internal/config"
)

// This file decides how many threads run Go code at once (GOMAXPROCS). If there are more than
// needed, each request that wakes a goroutine also wakes a thread that searches for work. On a
// small machine that costs more than the request, and delays it. So the daemon begins with one
// thread.
//
// When that thread is busy, the daemon tries twice as many for a moment, and keeps them if more
// work is done. If timers are late, it keeps them without a trial. Timers are late when a goroutine
// is always ready to run: then Go's scheduler polls the network only every ten milliseconds, and
// clients wait that long.

const (
	procsBusy = 50 * time.Millisecond // between two samples under load
	procsIdle = time.Second           // between two samples without load
	// procsCalm is how long fewer threads must have been enough before their number falls.
	procsCalm  = 2 * time.Second
	procsAgain = 5 * time.Second // time between two trials, at first, if the first one gained nothing
	maxPause   = time.Minute     // the maximum of that time
	procsFull  = 0.75            // share of the threads in use from which on more may be needed
	// procsSpare is a share of half the threads. While less is in use, half of them are enough.
	procsSpare = 0.5
	procsGain  = 1.1 // twice as many threads must do this many times the work
	procsLooks = 4   // samples in a trial, and in the time before it
	// procsLate is a delay of timers. If half of the samples before have it, no trial is needed.
	procsLate = 4 * time.Millisecond
)

// procs decides how many threads run.
type procs struct {
	max int
	now int

	busy   int     // samples in a row in which the threads were busy
	before float64 // sum of the rates of work in these samples
	late   int     // number of these samples in which a timer was late

	trial  int           // samples that are left of the trial; 0 if there is none
	during float64       // sum of the rates in the trial
	pause  time.Duration // time before the next trial
	wait   time.Duration // time between the last two trials

	calm time.Duration // how long half of the threads would have been enough
}

// procsSeen is a sample: what happened since the last one.
type procsSeen struct {
	while time.Duration
	used  float64       // processors in use, on average
	rate  float64       // work done per second, in any unit
	late  time.Duration // the delay of the worst timer
}

// next returns how many threads should run from now on.
func (p *procs) next(l procsSeen) int {
	p.pause = max(0, p.pause-l.while)
	if p.trial > 0 {
		p.try(l)
		return p.now
	}
	if l.used > procsFull*float64(p.now) && p.pause == 0 && p.now < p.max {
		if p.busy++; p.busy > 1 { // in the first sample, the load begins
			p.before += l.rate
		}
		if l.late >= procsLate {
			p.late++
		}
		if p.busy == procsLooks && p.late >= procsLooks/2 {
			p.now, p.busy, p.before, p.late = min(2*p.now, p.max), 0, 0, 0
		} else if p.busy == procsLooks {
			p.now, p.trial, p.during, p.busy, p.late = min(2*p.now, p.max), procsLooks, 0, 0, 0
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

// try counts a sample of a trial. The first sample does not count, and the last one ends the trial.
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
		p.wait = min(max(2*p.wait, procsAgain), maxPause)
		p.pause = p.wait
	}
	p.before = 0
}

// Threads sets how many threads run Go code at once.
type Threads struct {
	max   int
	fixed bool // the user has chosen the number, or there is no choice

	mu  sync.Mutex
	now int // guarded by mu, as is all
	all int // number of callers that ask for all threads
}

// NewThreads reads GOMAXPROCS from env.
func NewThreads(env config.Env) *Threads {
	n := runtime.GOMAXPROCS(0)
	v, _ := env("GOMAXPROCS")
	return &Threads{max: n, now: n, fixed: v != "" || n == 1}
}

// set makes n threads run, unless a caller asks for all threads.
func (t *Threads) set(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.now = n
	t.haveLocked()
}

// Takeover is called with true before a takeover makes clients wait, and with false when they are
// served again. In between the process has all threads that there can be, and no collection
// begins.
func (t *Threads) Takeover(begins bool) {
	t.askAll(begins)
	if begins {
		holdCollector()
	} else {
		time.AfterFunc(collectLater, letCollector)
	}
}

// askAll makes as many threads run as there can be, until it has been called with false as often as
// with true.
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
		runtime.GOMAXPROCS(t.max)
	default:
		runtime.GOMAXPROCS(t.now)
	}
}

// Loaded reports how much a daemon has done so far, and how late its timer was.
type Loaded interface {
	BytesRead() uint64
	TimerLate() time.Duration
}

// FollowLoad makes as many threads run as are needed, until ctx ends. Their maximum is Go's own
// choice, which follows the machine or the container's limit. A GOMAXPROCS that the user has set
// stays. FollowLoad also begins the collections of large heaps, and drops the pages that only the
// start needs when the daemon is first idle. It blocks.
func (t *Threads) FollowLoad(ctx context.Context, env config.Env, of Loaded) {
	p := procs{max: t.max, now: 1}
	defer t.set(p.max)
	t.set(p.now)
	timer := time.NewTimer(procsBusy)
	defer timer.Stop()
	heap := newHeap(env)
	dropped := false
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
			if !dropped {
				dropPages()
				dropped = true
			}
			timer.Reset(procsIdle)
		} else {
			timer.Reset(procsBusy)
		}
	}
}

// cpuTime returns the processor time that this process has used.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
