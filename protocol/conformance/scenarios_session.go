package conformance

import (
	"fmt"
	"syscall"
	"time"

	"github.com/locksidecar/locksidecar/daemon/engine"
	"github.com/locksidecar/locksidecar/protocol"
)

// Section 7: sessions, and what ends them.
var sessionScenarios = []Scenario{
	{"hello", "7 Sessions", "the client says hello first, and works after the welcome", nil, hello},
	{"version-refused", "7 Sessions", "no version in common is the error bad_version", nil,
		versionRefused},
	{"version-unknown", "7 Sessions",
		"a welcome of a version that was not offered is not used", nil, versionUnknown},
	{"connection-lost", "7 Sessions",
		"the end of the connection ends every hold and every request, and the client closes its " +
			"end",
		nil, connectionLost},
	{"in-flight-ends", "7 Sessions",
		"renewals and releases in flight end with the connection",
		[]string{"renew", "concurrent"}, inFlightEnds},
	{hungDaemonScenario, "13 Advice",
		"when the daemon stops answering, pings too, a wait without bound ends as unavailable",
		nil, hungDaemon},
	{"close-on-exec", "2 Transport",
		"programs that the client runs do not inherit its socket", []string{"exec"}, closeOnExec},
	{"fork", "13 Advice",
		"a forked child holds nothing, and neither keeps the connection open nor ends it",
		[]string{"fork"}, forked},
	{"fatal", "6 Faults", "after fatal nothing is held, and the client closes at once", nil, fatal},
	{"going-away", "7 Sessions",
		"what is held stays held and can be released while the daemon goes away", nil, goingAway},
	{"push-before-welcome", "7 Sessions",
		"a push before the welcome is no fault, whether its event is known or not",
		nil, pushBeforeWelcome},
	{"daemon-restarted", "7 Sessions",
		"after a restart of the daemon nothing is held, and fences rise", nil, restarted},
	{"no-daemon", "2 Transport",
		"without a daemon requests fail and do not hang; with one they work again", nil, noDaemon},
	{"close", "7 Sessions", "closing releases everything at once", nil, closing},
	{"stdin-closed", "7 Sessions",
		"the end of the program releases everything; it ends when its standard input does",
		nil, stdinClosed},
	{"heartbeat", "10 Requests (hello)",
		"where a namespace has a heartbeat, each keepalive is answered", nil, heartbeat},
	{"heartbeat-kept", "10 Requests (hello)",
		"a client without requests of its own keeps a hold in such a namespace",
		nil, heartbeatKept},
	{"heartbeat-added", "10 Requests (hello)",
		"each keepalive is answered although no namespace of the welcome has a heartbeat",
		nil, heartbeatAdded},
}

func hello(t *T) {
	r := t.real()
	p := r.peer()
	t.connect().ok()
	f := t.acquire(want{key: "k"}).fence()
	if f == 0 {
		t.failf("the fence is 0")
	}
	p.excluded("k", "the client holds it")
	t.mustHold("k", f, "after the grant")
	t.release("k", f).ok()
	p.free("k", "the client has released it")
	t.mustNotHold("k", f, "after its release")
}

// connects gives the client the command connect, and then an acquire if that succeeded. One of the
// two must fail with one of names.
func (t *T) connects(names ...string) {
	p := t.connect()
	if a := p.answer(); a.OK {
		p = t.acquire(want{key: "refused"})
	}
	p.fails(names...)
}

func versionRefused(t *T) {
	f := t.fakeWith(func(c *fakeConn, q *protocol.Request) {
		c.answer(q.ID, protocol.AppendFatal(nil, protocol.BadVersion, "versions 7 to 9"))
	})
	f.listen()
	t.connects("bad_version")
	f.newest().parted("bad_version")
}

func versionUnknown(t *T) {
	f := t.fakeWith(func(c *fakeConn, q *protocol.Request) {
		w := c.f.welcome()
		w.Version = q.MaxVersion + 1
		c.answer(q.ID, protocol.AppendWelcome(nil, q.ID, w))
	})
	f.listen()
	t.connects("bad_version", "bad_frame", "closed")
	f.newest().parted("a version that it did not offer")
}

func pushBeforeWelcome(t *T) {
	f := t.fakeWith(func(c *fakeConn, q *protocol.Request) {
		c.send(protocol.AppendGoingAway(nil, 10_000, "the daemon is going away"))
		c.send(frame(append(list{200, 0}, appended(1)...)...)) // of a later version
		c.answer(q.ID, protocol.AppendWelcome(nil, q.ID, c.f.welcome()))
	})
	f.listen()
	t.connect().ok()
	_, fence := f.hold(want{key: "k"}, f.grant(3))
	t.mustHold("k", fence, "after the grant")
	f.letGo("k", fence)
}

// overFor waits until a request is over that was in flight when its connection ended. Either the
// request fails with one of the names, or the client sends it again on another connection, where it
// is granted.
func (f *fake) overFor(p *pending, names ...string) {
	var again asked
	f.t.poll(p.what+", whose connection has ended", func() bool {
		if p.done() {
			return true
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		if len(f.queue) == 0 {
			return false
		}
		again, f.queue = f.queue[0], f.queue[1:]
		return true
	})
	if again.c == nil {
		p.fails(names...)
		return
	}
	again.give(f.grant(1 << 51))
	if p.fence() != 1<<51 {
		f.t.failf("an acquire that was asked anew has not the fence of its grant")
	}
	// Otherwise its owner could not acquire the key again after a loss.
	f.letGo(string(again.Key), 1<<51)
}

func connectionLost(t *T) {
	for _, half := range []bool{true, false} { // the daemon closes its writing side, or all
		t.lostConnection(half)
	}
}

func (t *T) lostConnection(half bool) {
	f := t.fake()
	defer f.close()
	defer t.gone()
	t.connect().ok()
	q, k := f.hold(want{key: "k"}, f.grant(3))
	_, l := f.hold(want{key: "l"}, f.grant(4))
	// Each round uses another key: a client that sends the request again may be granted the key, and
	// lose it.
	waits := fmt.Sprintf("m-%v", half)
	p := t.acquire(want{key: waits, wait: -1})
	f.expectAcquire(waits)
	if half {
		_ = q.c.nc.CloseWrite()
		q.c.parted("the daemon has closed its writing side")
	} else {
		_ = q.c.nc.Close()
	}
	t.parts("k", k, "the connection has ended")
	t.parts("l", l, "the connection has ended")
	t.told("k", k, "connection")
	f.overFor(p, "closed")
	t.releaseLost("k", k)
	t.releaseLost("l", l)
}

func inFlightEnds(t *T) {
	f := t.fake()
	t.connect().ok()
	q, k := f.hold(want{key: "k"}, f.grant(3))
	_, l := f.hold(want{key: "l"}, f.grant(4))
	renewal := t.renew("k", k, 0)
	f.expect(protocol.OpRenew, "the renewal")
	release := t.release("l", l)
	f.expect(protocol.OpRelease, "the release")
	_ = q.c.nc.Close()
	renewal.fails("closed", "not_held", "unavailable")
	release.answer() // success or failure: the end of the connection has released it
	t.parts("k", k, "the connection has ended")
	t.mustNotHold("l", l, "it was released, and the connection has ended")
}

// hungDaemon answers pings at first, and later nothing. Its connections stay open.
func hungDaemon(t *T) {
	f := t.fake()
	t.connect().ok()
	p := t.acquire(want{key: "k", wait: -1})
	f.expectAcquire("k")
	// This ping is answered.
	f.await("a ping while the client waits", func() bool { return f.pings > 0 })
	if p.done() {
		t.failf("the client has given up a wait without bound while the daemon answers pings")
	}
	f.change(func() { f.hung = true })
	f.t.await("the end of a wait for a daemon that hangs", func() bool {
		return t.p.answers[p.id] != nil
	})
	p.fails("unavailable", "closed")
}

// closeOnExec checks the sockets of the client's process.
func closeOnExec(t *T) {
	f := t.fake()
	t.connect().ok()
	q, _ := f.hold(want{key: "k"}, f.grant(3))
	open, err := inheritable(q.c.nc)
	t.must(err)
	if open {
		t.failf("the descriptor of the client's socket is not close-on-exec: a program that it " +
			"runs would keep the session alive")
	}
}

// forked makes the client fork, and then kills it while its child continues to run.
func forked(t *T) {
	f := t.fake()
	t.connect().ok()
	q, k := f.hold(want{key: "k"}, f.grant(3))
	a := t.send(Command{"do": "fork", "key": "k", "owner": 1, "fence": k}).ok()
	if a.PID == 0 || a.Held == nil {
		t.failf(`the answer to fork has no "pid", or no "held"`)
	}
	t.defers(func() { _ = syscall.Kill(a.PID, syscall.SIGKILL) })
	if *a.Held {
		t.failf("a forked child believes that it holds its parent's lock")
	}
	f.barrier()
	t.mustHold("k", k, "after a fork")
	f.letGo("k", k)
	_ = syscall.Kill(t.p.cmd.Process.Pid, syscall.SIGKILL)
	f.awaitEnd(q.c, "the end of the connection after the process that forked was killed: "+
		"its child keeps a copy of the descriptor open")
}

func fatal(t *T) {
	f := t.fake()
	t.connect().ok()
	q, k := f.hold(want{key: "k"}, f.grant(3))
	p := t.acquire(want{key: "m", wait: -1})
	f.expectAcquire("m")
	q.c.send(protocol.AppendFatal(nil, protocol.TooSlow, "does not read"))
	q.c.parted("fatal")
	t.mustNotHold("k", k, "after fatal")
	t.told("k", k, "connection")
	f.overFor(p, "closed", "too_slow")
}

func goingAway(t *T) {
	f := t.fake()
	t.connect().ok()
	q, k := f.hold(want{key: "k"}, f.grant(3))
	_, l := f.hold(want{key: "l"}, f.grant(4))
	q.c.send(protocol.AppendGoingAway(nil, 60_000, "restart"))
	p := t.acquire(want{key: "m"})
	f.expectAcquire("m").refuse(protocol.Draining)
	t.poll("the answer to acquire, which was answered draining", func() bool {
		f.refuseAll(protocol.Draining, protocol.Draining)
		return p.done()
	})
	p.fails("draining")
	t.mustHold("k", k, "while the daemon goes away")
	f.letGo("k", k)
	q.c.send(protocol.AppendLost(nil, "l", q.Owner, 4, protocol.LostShutdown))
	t.parts("l", l, "it was called lost")
	t.told("l", l, "shutdown")
	q.c.send(protocol.AppendFatal(nil, protocol.Draining, "stopping"))
	q.c.parted("fatal")
}

func restarted(t *T) {
	r := t.real()
	t.connect().ok()
	old := t.acquire(want{key: "k"}).fence()
	r.stop()
	t.parts("k", old, "its daemon has ended")
	t.told("k", old, "connection")
	r = t.real()
	p := r.peer()
	t.connect().ok()
	t.mustNotHold("k", old, "with a new daemon")
	f := p.acquire("k", "the daemon is new")
	t.releaseLost("k", old)
	p.excluded2("k", f)
	t.acquire(want{key: "k"}).fails("busy")
	p.release("k", f)
	again := t.acquire(want{key: "k", wait: -1}).fence()
	if again <= f || f <= old {
		t.failf("the fences %v, %v, %v do not rise", old, f, again)
	}
	t.mustHold("k", again, "with a new daemon")
	t.mustNotHold("k", old, "with a new daemon")
}

// excluded2 fails the scenario unless the peer still has its hold.
func (p *peer) excluded2(key string, f Fence) {
	if _, err := p.c.Renew(p.t.ctx, key, rival, uint64(f), 0); err != nil {
		p.t.failf("a release by another session freed %q: %v", key, err)
	}
}

func noDaemon(t *T) {
	names := []string{"closed", "unavailable"}
	t.connects(names...)
	r := t.real()
	t.connect().ok()
	k := t.acquire(want{key: "k"}).fence()
	r.stop()
	t.gone()
	t.parts("k", k, "its daemon has ended")
	t.releaseLost("k", k)
	t.connects(names...)
	t.real()
	t.connect().ok()
	k = t.acquire(want{key: "k"}).fence()
	t.mustHold("k", k, "after the grant")
}

func closing(t *T) {
	r := t.real()
	p := r.peer()
	t.connect().ok()
	k := t.acquire(want{key: "k"}).fence()
	l := t.acquire(want{key: "l"}).fence()
	t.send(Command{"do": "close"}).ok()
	p.free("k", "the client has closed")
	p.free("l", "the client has closed")
	t.mustNotHold("k", k, "after close")
	t.mustNotHold("l", l, "after close")
}

func stdinClosed(t *T) {
	r := t.real()
	p := r.peer()
	t.connect().ok()
	keys := []string{"k", "l", "m"}
	for _, k := range keys {
		t.acquire(want{key: k}).fence()
	}
	if t.able("concurrent") { // the program must also end during a wait
		p.acquire("waited", "nobody has it")
		t.acquire(want{key: "waited", wait: -1})
		p.waiters("waited", 1)
	}
	_ = t.p.stdin.Close()
	select {
	case <-t.p.ended:
	case <-t.ctx.Done():
		t.timeout("the client to end once its standard input has ended")
	}
	for _, k := range keys {
		p.free(k, "the client has ended")
	}
	if t.able("concurrent") {
		p.waiters("waited", 0)
	}
}

func heartbeat(t *T) {
	f := t.fakeWith(func(c *fakeConn, q *protocol.Request) {
		w := c.f.welcome()
		w.Namespaces = append(w.Namespaces, protocol.Namespace{Prefix: "keepalive:", Store: "embedded",
			Safety: "linearizable", Heartbeat: 10_000})
		c.answer(q.ID, protocol.AppendWelcome(nil, q.ID, w))
	})
	f.listen()
	f.beatsAreAnswered()
}

// heartbeatAdded tests a client that has connected before a reload requires a heartbeat.
func heartbeatAdded(t *T) { t.fake().beatsAreAnswered() }

func (f *fake) beatsAreAnswered() {
	t := f.t
	t.connect().ok()
	q, k := f.hold(want{key: "keepalive:k"}, f.grant(3))
	for range 3 {
		f.mu.Lock()
		before := f.pings
		f.mu.Unlock()
		q.c.send(protocol.AppendKeepalive(nil, f.now()+farAway, farAway))
		f.await("a ping behind the keepalive", func() bool { return f.pings > before })
	}
	t.mustHold("keepalive:k", k, "after keepalives")
}

func heartbeatKept(t *T) {
	const every = 5 * time.Second
	r := t.real(engine.Namespace{Prefix: "keepalive:", Store: "store", Heartbeat: every})
	p := r.peer()
	t.connect().ok()
	k := t.acquire(want{key: "keepalive:k"}).fence()
	t.after(bootMillis() + uint64(every.Milliseconds()) + 500)
	s, err := p.c.Inspect(t.ctx, "keepalive:k")
	t.must(err)
	if s.Held != protocol.HeldHere {
		t.failf("the hold was lost although the client lives: it does not answer keepalives")
	}
	t.mustHold("keepalive:k", k, "later than a heartbeat")
}

// stopped runs f while the client's process is stopped.
func (t *T) stopped(f func()) {
	t.p.signal(syscall.SIGSTOP)
	defer t.p.signal(syscall.SIGCONT)
	f()
}
