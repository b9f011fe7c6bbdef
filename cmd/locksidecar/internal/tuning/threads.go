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
// thread. When that is busy, it tries twice as many for a moment, and keeps them if more work is
// done. It keeps them at once if timers are late: while a goroutine is always ready to run, Go's
// scheduler polls the network only every ten milliseconds, and clients wait that long.

const (
	procsBusy = 50 * time.Millisecond // between two samples under load
	procsIdle = time.Second           // between two samples without load
	// how long fewer must have been enough before there are fewer
	procsCalm  = 2 * time.Second
	procsAgain = 5 * time.Second // between two trials, at first, if the first gained nothing
	maxPause   = time.Minute     // the maximum of that
	procsFull  = 0.75            // share of the threads that is used: more may be needed
	procsSpare = 0.5             // share of half the threads that is used: half are enough
	procsGain  = 1.1             // times as much work must be done with twice as many
	procsLooks = 4               // samples of a trial, and of the time before it
	// procsLate is the delay of a timer, in half of the samples before, that needs no trial.
	procsLate = 4 * time.Millisecond
)

// procs decides how many threads there are.
type procs struct {
	max int
	now int

	busy   int     // samples in a row in which the threads were busy
	before float64 // sum of the rates of work in these
	late   int     // number of these in which a timer was late

	trial  int           // samples that are left of it; 0 if there is none
	during float64       // sum of the rates in it
	pause  time.Duration // before the next
	wait   time.Duration // between the last two

	calm time.Duration // how long half of the threads would have been enough
}

// procsSeen is a sample: what happened since the last one.
type procsSeen struct {
	while time.Duration
	used  float64       // processors, as a mean
	rate  float64       // of work done, in any unit
	late  time.Duration // for the worst timer
}

// next returns how many there should be from now on.
func (p *procs) next(l procsSeen) int {
	p.pause = max(0, p.pause-l.while)
	if p.trial > 0 {
		p.try(l)
		return p.now
	}
	if l.used > procsFull*float64(p.now) && p.pause == 0 && p.now < p.max {
		if p.busy++; p.busy > 1 { // the first is the load's beginning
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
	now int // guarded by mu, as is
	all int // how many ask for all there can be
}

// NewThreads reads GOMAXPROCS from env.
func NewThreads(env config.Env) *Threads {
	n := runtime.GOMAXPROCS(0)
	v, _ := env("GOMAXPROCS")
	return &Threads{max: n, now: n, fixed: v != "" || n == 1}
}

// set makes n threads run, unless all are asked for.
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

// askAll makes as many threads run as there can be, until it has been called with false as often
// as with true.
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

// Loaded tells how much a daemon has done so far, and how late its timer was.
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
