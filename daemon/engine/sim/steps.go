package sim

import (
	"errors"
	"iter"
	"slices"
)

// Reloads in steps. The engine applies a configuration to one table after the other. In a daemon,
// other goroutines handle requests, answers of stores and the timer in between.

// steps is a reload in progress.
type steps struct {
	pick  func(n int) int
	began int64               // by the host's clock
	was   *conf               // the configuration before
	yield func(struct{}) bool // nil except while a step is carried out
	stop  func()
}

const (
	stepPause = 2 * ms // the longest between two steps
	// lateOutput is how much later than its decision the output of a session is written at most, which
	// waits for the next step of a reload.
	lateOutput = 10 * stepPause
)

// errStepsCut ends the steps of a daemon that has been killed.
var errStepsCut = errors.New("the daemon has ended")

// inSteps carries out do, which reloads the daemon, in steps. Dice of their own choose the steps,
// so that runs without them stay the same.
func (h *host) inSteps(was *conf, pick func(n int) int, do func()) {
	st := &steps{pick: pick, was: was, began: h.clock()}
	var between func(struct{}) bool
	next, stop := iter.Pull(func(yield func(struct{}) bool) {
		defer func() {
			if p := recover(); p != nil && p != errStepsCut {
				panic(p)
			}
		}()
		between = yield
		do()
	})
	st.stop = stop
	h.steps = st
	h.w.say(nil, "host %d begins to reload", h.id)
	var step func()
	step = func() {
		st.yield = func(x struct{}) bool { return between(x) }
		_, more := next()
		if st.yield = nil; more {
			h.after(int64(pick(int(stepPause))), step)
		} else if h.steps == st {
			h.steps, h.reloaded = nil, h.w.now
		}
	}
	step()
}

// betweenSteps is called by the engine between two steps. It lets other events come in between.
func (h *host) betweenSteps() {
	st := h.steps
	if st == nil || st.yield == nil || st.pick(8) > 0 {
		return
	}
	h.w.counts.Tallies[reloadSteps]++
	if !st.yield(struct{}{}) {
		panic(errStepsCut)
	}
}

// cutSteps ends the steps of a daemon that ends.
func (h *host) cutSteps() {
	if st := h.steps; st != nil {
		h.steps = nil
		st.stop()
	}
}

// late reports whether output that is written now may have waited for a step of a reload.
func (h *host) late() bool {
	return h.steps != nil || h.reloaded > 0 && h.w.now-h.reloaded < lateOutput
}

// decided returns the earliest time, by the host's clock, at which the daemon can have decided what
// it tells now.
func (h *host) decided() int64 {
	if h.steps != nil {
		return h.steps.began
	}
	return h.clock()
}

// follows returns the namespaces of a key that the daemon may follow now. During a reload there are
// two.
func (h *host) follows(key string) []*namespace {
	all := []*namespace{h.conf.of(key)}
	if h.steps != nil {
		all = append(all, h.steps.was.of(key))
	}
	return all
}

// allows reports whether a user may get a key now.
func (h *host) allows(key string, uid int) bool {
	return slices.ContainsFunc(h.follows(key), func(sp *namespace) bool { return sp.allows(uid) })
}

// mayDegrade reports whether the host may grant a key alone now.
func (h *host) mayDegrade(key string) bool {
	return slices.ContainsFunc(h.follows(key), func(sp *namespace) bool { return sp.Local })
}
