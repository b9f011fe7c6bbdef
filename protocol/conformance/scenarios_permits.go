package conformance

import (
	"errors"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/protocol/client"
)

// Section 8: semaphores.
var permitScenarios = []Scenario{
	{"semaphore", "8 Holding",
		"as many permits as the limit allows, each a hold with its own fence",
		[]string{"permits"}, semaphore},
	{"semaphore-waits", "8 Holding",
		"a waiter for a permit gets the next one that is released",
		[]string{"permits"}, semaphoreWaits},
	{"permit-lost", "8 Holding",
		"a lost push ends the permit that it names, and no other permit of its owner",
		[]string{"permits"}, permitLost},
}

// permit has the peer try to acquire a permit.
func (p *peer) permit(key string, permits uint32) (Fence, error) {
	g, err := p.c.Acquire(p.t.ctx, client.AcquireArgs{Key: key, Owner: rival, Permits: permits})
	return Fence(g.Fence), err
}

func (p *peer) noPermit(key string, permits uint32, when string) {
	if _, err := p.permit(key, permits); !errors.Is(err, client.ErrBusy) {
		p.t.failf("%s: another session got a permit of %q (%v)", when, key, err)
	}
}

func semaphore(t *T) {
	r := t.real()
	p := r.peer()
	t.connect().ok()
	one := t.acquire(want{key: "k", permits: 3}).fence()
	two := t.acquire(want{key: "k", permits: 3}).fence()
	if one == two {
		t.failf("two permits have the fence %v: each acquire takes one of its own", one)
	}
	t.mustHold("k", one, "after the second permit")
	t.mustHold("k", two, "after the second permit")
	three, err := p.permit("k", 3)
	t.must(err)
	t.acquire(want{key: "k", permits: 3}).fails("busy")
	p.noPermit("k", 3, "all three are taken")
	p.free("k", "a semaphore is no lock")
	t.release("k", one).ok()
	t.mustNotHold("k", one, "after its release")
	t.mustHold("k", two, "after the release of the other permit")
	t.release("k", one).fails("not_held")
	one, err = p.permit("k", 3)
	t.must(err)
	p.noPermit("k", 3, "the client has one left")
	p.release("k", three)
	p.release("k", one)
	t.release("k", two).ok()
}

func semaphoreWaits(t *T) {
	r := t.real()
	p := r.peer()
	t.connect().ok()
	theirs, err := p.permit("k", 1)
	t.must(err)
	t.timesOut(func() *pending { return t.acquire(want{key: "k", permits: 1, wait: soon.Milliseconds()}) })
	w := t.acquire(want{key: "k", permits: 1, wait: -1})
	t.poll("the client to wait for a permit", func() bool {
		s, err := p.c.InspectSemaphore(t.ctx, "k")
		t.must(err)
		return s.Waiters == 1
	})
	p.release("k", theirs)
	f := w.fence()
	t.mustHold("k", f, "after the grant")
	p.noPermit("k", 1, "the client has it")
	t.release("k", f).ok()
}

func permitLost(t *T) {
	f := t.fake()
	t.connect().ok()
	take := func(fence uint64) (asked, Fence) {
		q, got := f.hold(want{key: "k", permits: 5}, f.grant(fence))
		if q.Mode != protocol.Permit || q.Permits != 5 {
			t.failf("the acquire of one of 5 permits comes with mode %d and permits %d",
				q.Mode, q.Permits)
		}
		return q, got
	}
	q, one := take(7 << 10)
	_, two := take(8 << 10)
	q.c.send(protocol.AppendLost(nil, "k", q.Owner, uint64(one), protocol.LostGone))
	t.parts("k", one, "it was called lost")
	t.told("k", one, "gone")
	t.mustHold("k", two, "another permit was called lost")
	f.letGo("k", two)
}
