package sim

import (
	"errors"
	"iter"
	"slices"
)

// This file has reloads in steps. The engine applies a configuration to one table after the other.
// In a daemon, other goroutines handle requests, answers of stores and the timer in between.

// steps is a reload in progress.
type steps struct {
	pick  func(n int) int
	pause int64               // the longest pause between two steps
	since int64               // true time of the first step
	began int64               // the same by the host's clock
	was   *conf               // the configuration before
	yield func(struct{}) bool // nil except while a step is carried out
	stop  func()
}

// stepPauses has the longest pauses between two steps. A round trip to a store fits into most of
// the longer ones, and a whole hold into some.
var stepPauses = []int64{2 * ms, 2 * ms, 20 * ms, 200 * ms}

// errStepsCut ends the steps of a daemon that has been killed.
var errStepsCut = errors.New("the daemon has ended")

// inSteps carries out do, which reloads the daemon, in steps. Dice of their own choose the steps,
// so that runs without them stay the same.
func (h *host) inSteps(was *conf, pick func(n int) int, do func()) {
	st := &steps{pick: pick, was: was, since: h.w.now, began: h.clock(),
		pause: stepPauses[pick(len(stepPauses))]}
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
			h.after(int64(pick(int(st.pause))), step)
		} else if h.steps == st {
			h.steps = nil
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

// decided returns the earliest time, by the host's clock, at which the daemon can have decided what
// it sends now.
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
	return slices.ContainsFunc(h.follows(key), func(ns *namespace) bool { return ns.allows(uid) })
}

// mayDegrade reports whether the host may grant a key alone now.
func (h *host) mayDegrade(key string) bool {
	return slices.ContainsFunc(h.follows(key), func(ns *namespace) bool { return ns.Local })
}
