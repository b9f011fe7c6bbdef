package conformance

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/renewer"
)

// T is a running scenario. Its methods end the scenario when they fail. Only the goroutine of the
// scenario may call them.
type T struct {
	ctx     context.Context
	name    string
	dir     string
	socket  string
	p       *program
	can     []string
	cleanup []func()
	faults  chan error // faults that the fake daemon finds
	last    int        // the id of the last command
	polled  string     // what poll waits for
}

// failure is the panic value that ends a scenario.
type failure struct{ why string }

func (t *T) failf(format string, a ...any) { panic(failure{fmt.Sprintf(format, a...)}) }

// must ends the scenario if the runner itself has failed.
func (t *T) must(err error) {
	switch {
	case err == nil:
	case t.ctx.Err() != nil:
		t.timeout("the daemon's answer to the runner")
	default:
		t.failf("%v", err)
	}
}

func (t *T) defers(f func()) { t.cleanup = append(t.cleanup, f) }

// end runs all cleanups, the last one first.
func (t *T) end() {
	for _, f := range slices.Backward(t.cleanup) {
		f()
	}
}

// run carries out the scenario and returns its outcome.
func (t *T) run(o *Options, s *Scenario) (outcome Outcome, why string) {
	defer func() {
		if v := recover(); v != nil {
			f, ok := v.(failure)
			if !ok {
				panic(v)
			}
			outcome, why = Failed, f.why
		}
	}()
	t.faults = make(chan error, 1)
	t.socket = filepath.Join(t.dir, "s")
	t.must(os.Mkdir(t.dir, 0o700))
	p, err := launch(o.Command, append(os.Environ(), append(o.Env, "LOCKSIDECAR_SOCKET="+t.socket)...))
	t.must(err)
	t.p = p
	t.defers(p.close)
	t.await("the client's ready line", func() bool { return p.ready != nil })
	t.can = p.ready.Can
	for _, c := range t.can {
		if !slices.ContainsFunc(Abilities, func(a [2]string) bool { return a[0] == c }) {
			t.failf("the client declares the ability %q, which does not exist", c)
		}
	}
	var lacks []string
	for _, n := range s.Needs {
		if !t.able(n) {
			lacks = append(lacks, n)
		}
	}
	if len(lacks) > 0 {
		return Skipped, fmt.Sprintf("the client does not declare %v", lacks)
	}
	s.run(t)
	t.healthy()
	return Passed, ""
}

func (t *T) able(ability string) bool { return slices.Contains(t.can, ability) }

// healthy fails the scenario if the client has broken a rule meanwhile.
func (t *T) healthy() {
	select {
	case err := <-t.faults:
		t.failf("%v", err)
	default:
	}
	t.p.mu.Lock()
	err := t.p.fault
	t.p.mu.Unlock()
	if err != nil {
		t.failf("%v", err)
	}
}

// fault keeps the first fault that a goroutine of the runner finds.
func (t *T) fault(err error) {
	select {
	case t.faults <- err:
	default:
	}
}

// await waits until cond returns true. cond is called with program.mu held, whenever the client has
// printed something.
func (t *T) await(what string, cond func() bool) {
	for {
		t.p.mu.Lock()
		ok, changed, exit, fault := cond(), t.p.changed, t.p.exit, t.p.fault
		t.p.mu.Unlock()
		switch {
		case fault != nil:
			t.failf("%v", fault)
		case ok:
			return
		case exit != "":
			t.failf("waited for %s, but the client has ended: %s", what, exit)
		}
		select {
		case <-changed:
		case err := <-t.faults:
			t.failf("%v", err)
		case <-t.ctx.Done():
			t.timeout(what)
		}
	}
}

func (t *T) timeout(what string) {
	if t.polled != "" {
		what = t.polled
	}
	if errors.Is(t.ctx.Err(), context.DeadlineExceeded) {
		t.failf("waited in vain for %s", what)
	}
	t.failf("cut short while waiting for %s", what)
}

// poll calls ok until it returns true. It is for conditions whose changes are not reported.
func (t *T) poll(what string, ok func() bool) {
	t.polled = what
	defer func() { t.polled = "" }()
	for !ok() {
		t.healthy()
		select {
		case <-t.ctx.Done():
			t.timeout(what)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// after returns when the boot clock has passed ms.
func (t *T) after(ms uint64) {
	t.waitMuted(ms + 1)
	if t.ctx.Err() != nil {
		t.timeout("a time to pass")
	}
}

// waitMuted is like after, for a goroutine of the fake. It may end early.
func (t *T) waitMuted(ms uint64) {
	for left := int64(ms) - int64(bootMillis()); left > 0; left = int64(ms) - int64(bootMillis()) {
		select {
		case <-t.ctx.Done():
			return
		case <-time.After(time.Duration(left) * time.Millisecond):
		}
	}
}

func bootMillis() uint64 { return uint64(renewer.Boottime() / int64(time.Millisecond)) }

// pending is a command that the client has been given.
type pending struct {
	t    *T
	id   int
	what string
}

// send gives the client a command.
func (t *T) send(c Command) *pending {
	what := fmt.Sprint("the answer to ", c["do"])
	if k, ok := c["key"]; ok {
		what += fmt.Sprintf(" of %.40q", k)
	}
	id, err := t.p.send(c)
	if err != nil {
		// the client has ended; await reports that with more details
		t.await(what, func() bool { return false })
	}
	t.last = id
	return &pending{t, id, what}
}

// refused returns the error of the last command; it is empty if there is none.
func (t *T) refused() string {
	t.p.mu.Lock()
	defer t.p.mu.Unlock()
	if a := t.p.answers[t.last]; a != nil {
		return a.Error
	}
	return ""
}

// done reports whether the answer has arrived.
func (p *pending) done() bool {
	p.t.p.mu.Lock()
	defer p.t.p.mu.Unlock()
	return p.t.p.answers[p.id] != nil
}

// answer waits for the answer.
func (p *pending) answer() *Answer {
	var a *Answer
	p.t.await(p.what, func() bool { a = p.t.p.answers[p.id]; return a != nil })
	return a
}

// ok waits for success.
func (p *pending) ok() *Answer {
	a := p.answer()
	if !a.OK {
		p.t.failf("%s is the error %q; success was expected", p.what, a.Error)
	}
	return a
}

// fence waits for a grant.
func (p *pending) fence() Fence {
	a := p.ok()
	if a.Fence == nil {
		p.t.failf("%s has no fence", p.what)
	}
	return *a.Fence
}

// fails waits for one of these errors, or for any error if names is empty.
func (p *pending) fails(names ...string) string {
	a := p.answer()
	if a.OK {
		p.t.failf("%s is success; the error %v was expected", p.what, names)
	}
	if len(names) > 0 && !slices.Contains(names, a.Error) {
		p.t.failf("%s is the error %q; expected is %v", p.what, a.Error, names)
	}
	return a.Error
}

// want describes an acquire.
type want struct {
	key     string
	owner   uint64 // 1 when 0
	shared  bool
	permits int // of a semaphore; 0 for a lock
	wait    int64
	ttl     int64
	fixed   bool
	keep    int64
}

func (w want) who() uint64 { return max(w.owner, 1) }

func mode(shared bool) string {
	if shared {
		return "shared"
	}
	return "exclusive"
}

func (t *T) acquire(w want) *pending {
	c := Command{"do": "acquire", "key": w.key, "owner": w.who(), "mode": mode(w.shared),
		"wait_ms": w.wait,
		"ttl_ms":  w.ttl, "fixed": w.fixed}
	if w.keep > 0 {
		c["keep_ms"] = w.keep
	}
	if w.permits > 0 {
		c["mode"], c["permits"] = "permit", w.permits
	}
	return t.send(c)
}

func (t *T) release(key string, f Fence) *pending { return t.releaseAs(1, key, f) }

func (t *T) releaseAs(owner uint64, key string, f Fence) *pending {
	return t.send(Command{"do": "release", "key": key, "owner": owner, "fence": f})
}

// releaseLost makes the client release a hold that ended with its connection. Before that, the
// client may not acquire the key again for the same owner.
func (t *T) releaseLost(key string, f Fence) {
	if a := t.release(key, f).answer(); !a.OK && a.Error != "not_held" && a.Error != "closed" {
		t.failf("the release of a hold of %q whose connection has ended failed with %q",
			key, a.Error)
	}
}

func (t *T) renew(key string, f Fence, ttl int64) *pending {
	return t.send(Command{"do": "renew", "key": key, "owner": 1, "fence": f, "ttl_ms": ttl})
}

// connect gives the client the command connect.
func (t *T) connect() *pending { return t.send(Command{"do": "connect"}) }

// held asks the client whether it has the hold.
func (t *T) held(key string, f Fence) bool { return t.heldAs(1, key, f) }

func (t *T) heldAs(owner uint64, key string, f Fence) bool {
	a := t.send(Command{"do": "held", "key": key, "owner": owner, "fence": f}).ok()
	if a.Held == nil {
		t.failf(`the answer to held has no "held"`)
	}
	return *a.Held
}

func (t *T) mustHold(key string, f Fence, when string) {
	if !t.held(key, f) {
		t.failf("%s: the client holds %q, and does not believe it", when, key)
	}
}

func (t *T) mustNotHold(key string, f Fence, when string) {
	if t.held(key, f) {
		t.failf("%s: the client believes that it still holds %q", when, key)
	}
}

// parts waits until the client no longer reports the hold as held. It is for facts that the client
// learns from its socket, which are not ordered with commands.
func (t *T) parts(key string, f Fence, why string) {
	t.poll(fmt.Sprintf("the client to stop believing that it holds %q: %s", key, why), func() bool {
		return !t.held(key, f)
	})
}

// told waits for a lost event, if the client has the ability to send them.
func (t *T) told(key string, f Fence, reasons ...string) {
	if !t.able("events") {
		return
	}
	var e *Event
	t.await(fmt.Sprintf("the lost event of %q", key), func() bool {
		for i := range t.p.events {
			e = &t.p.events[i]
			if e.Event == "lost" && e.Key == key && e.Fence != nil && *e.Fence == f {
				return true
			}
		}
		return false
	})
	if len(reasons) > 0 && !slices.Contains(reasons, e.Reason) {
		t.failf("the lost event of %q has the reason %q; expected is %v", key, e.Reason, reasons)
	}
}
