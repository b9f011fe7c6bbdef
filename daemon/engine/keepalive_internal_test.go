package engine

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/embedded"
)

// beating is an engine whose clock is set by hand, whose leases have TTLs of their own, and which
// looks at one hold at a time; and a session.
type beating struct {
	*testing.T
	e     *Engine
	u     *StoreLane
	store *embedded.Store
	s     *Session
	k     *sink
	now   atomic.Int64
}

func newBeating(t *testing.T) *beating {
	b := &beating{T: t}
	b.now.Store(int64(time.Hour))
	clock := b.now.Load
	var err error
	if b.store, err = embedded.Open(embedded.Options{Clock: clock,
		Session: 10 * time.Hour}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.store.Close() })
	b.e = NewEngine(Settings{Table: cache.DefaultConfig(), MaxFrame: protocol.DefaultMaxFrame,
		OutBuffer: 1 << 20,
		InFlight:  1, BatchSize: 64, Survey: 1}, clock, func(int64) {})
	if b.u, err = b.e.AddStore("", upstream.Info{Rebase: true, Timeout: time.Second},
		nil); err == nil {
		err = b.e.Route([]Namespace{{TTL: 30 * time.Second}}, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	b.s, b.k = open(t, b.e)
	return b
}

// answer has the store carry out what waits for it.
func (b *beating) answer() {
	for _, lane := range []*upstream.Lane{b.u.main, b.u.renewals} {
		for b.exchange(lane) > 0 {
		}
	}
}

// exchange has the store carry out the next batch of a lane, and says how many ops that were.
func (b *beating) exchange(lane *upstream.Lane) int {
	b.Helper()
	p := lane.Next()
	if p == nil {
		return 0
	}
	p.Sent = b.now.Load()
	if err := b.store.Apply(b.Context(), p.Ops, p.Results); err != nil {
		b.Fatal(err)
	}
	n := len(p.Ops)
	b.e.Deliver(p)
	lane.Done(p)
	return n
}

func (b *beating) acquire(key string, ttl time.Duration) protocol.Grant {
	b.Helper()
	send(b.s, &protocol.Request{Op: protocol.OpAcquire, ID: 5, Key: []byte(key),
		TTL: uint64(ttl / time.Millisecond)})
	b.answer()
	m := b.k.last(b)
	g, err := m.Grant()
	if m.Code != protocol.OK || err != nil {
		b.Fatal(m.Code, err)
	}
	return g
}

// tick makes the engine visit one hold. It returns what a keepalive then states; 0 without one.
func (b *beating) tick() (until uint64) {
	b.now.Add(surveyPauseMax)
	b.k.buf = nil
	b.e.Tick()
	b.answer()
	if b.k.buf == nil {
		return 0
	}
	m := b.k.last(b)
	until, _, err := m.Keepalive()
	if err != nil {
		b.Fatal(err)
	}
	return until
}

// due makes the session's keepalive due.
func (b *beating) due() {
	b.s.mu.Lock()
	b.s.keepaliveAt = b.now.Load()
	b.s.mu.Unlock()
	b.e.keepaliveBy(b.now.Load())
}

// untilBeat calls tick until there is a keepalive, unless there has been one.
func (b *beating) untilBeat(until uint64) uint64 {
	b.Helper()
	for n := 0; until == 0; n++ {
		if n > 100 {
			b.Fatal("no keepalive")
		}
		until = b.tick()
	}
	return until
}

// A survey of many holds takes several ticks. Grants and releases meanwhile must not make the
// keepalive state more than what is true of every hold.
func TestGrantedDuringASurvey(t *testing.T) {
	b := newBeating(t)
	defer b.e.End(b.s)
	for i := range 8 {
		b.acquire(fmt.Sprint("long:", i), time.Minute)
	}
	b.now.Add(int64(15 * time.Second))
	b.due()
	if b.tick() != 0 {
		t.Fatal("all was looked at in one go")
	}
	short := b.acquire("short", time.Second)
	until := b.untilBeat(0)
	if until > short.Deadline {
		t.Errorf("all is said to be valid %d ms longer than what was granted meanwhile",
			until-short.Deadline)
	}
}

func TestGivenUpDuringASurvey(t *testing.T) {
	b := newBeating(t)
	defer b.e.End(b.s)
	fences := make([]uint64, 8)
	var last protocol.Grant
	for i := range fences {
		ttl := time.Minute
		if i == 0 { // it is looked at last
			ttl = 20 * time.Second
		}
		g := b.acquire(keyOfShard(9, i), ttl)
		if fences[i] = g.Fence; i == 0 {
			last = g
		}
	}
	b.due()
	until := b.tick()
	// the one that would be looked at next
	for next := len(fences) - 2; until == 0 && next > 0; next -= 2 {
		send(b.s, &protocol.Request{Op: protocol.OpRelease, ID: 6, Key: []byte(keyOfShard(9, next)),
			Fence: fences[next]})
		b.answer()
		until = b.tick()
	}
	if until = b.untilBeat(until); until > last.Deadline {
		t.Errorf("all is said to be valid %d ms longer than one of them", until-last.Deadline)
	}
}

// keyOfShard is the nth key of that shard.
func keyOfShard(shard, nth int) string {
	for i := 0; ; i++ {
		key := fmt.Sprint("key:", i)
		if shardOf(key) != shard {
			continue
		}
		if nth == 0 {
			return key
		}
		nth--
	}
}

// Surveys are spread over an eighth of the time between keepalives, in parts that are neither too
// close nor too far apart.
func TestPauseBetweenPartsOfSurveys(t *testing.T) {
	surveys := func(sessions int, holds int64, ttl time.Duration) (all []survey) {
		for range sessions {
			s := &Session{core: &cache.Session{}}
			s.core.Holds.Store(holds)
			all = append(all, survey{s: s, every: int64(ttl) / 3})
		}
		return all
	}
	for _, c := range []struct {
		all   []survey
		pause time.Duration
	}{
		{surveys(1, 1_000_000, 30*time.Second), 2600 * time.Microsecond},
		{surveys(1, 1_000_000, 3*time.Second), time.Millisecond},
		{surveys(10_000, 1, 30*time.Second), 5 * time.Millisecond},
		// the most urgent
		{append(surveys(1, 1_000_000, 30*time.Second), surveys(1, 1, time.Second)...), time.Millisecond},
		{nil, 5 * time.Millisecond},
	} {
		if got := time.Duration(pauseOf(c.all, maxSurvey)); got.Round(100*time.Microsecond) != c.pause {
			t.Errorf("%v, not %v", got, c.pause)
		}
	}
}

// grantedBehindAnother returns the grant of a key that requires a heartbeat of 2 s. The session,
// which holds a key that requires none, has waited that long for it, and has sent nothing
// meanwhile.
func (b *beating) grantedBehindAnother(wait time.Duration) protocol.Grant {
	b.Helper()
	err := b.e.Route([]Namespace{{TTL: 30 * time.Second},
		{Prefix: "h:", TTL: 30 * time.Second, Heartbeat: 2 * time.Second, Tenure: time.Hour}}, nil)
	if err != nil {
		b.Fatal(err)
	}
	b.acquire("a", 30*time.Second)
	other, _ := open(b.T, b.e)
	send(other, &protocol.Request{Op: protocol.OpAcquire, ID: 1, Key: []byte("h:k"), TTL: 30_000})
	b.answer()
	send(b.s, &protocol.Request{Op: protocol.OpAcquire, ID: 7, Key: []byte("h:k"), TTL: 30_000,
		Wait: protocol.WaitAlways})
	b.answer()
	b.now.Add(int64(wait))
	b.e.End(other)
	m := b.k.last(b)
	g, err := m.Grant()
	if err != nil || m.ID != 7 {
		b.Fatal(m.ID, m.Code, err)
	}
	if left := time.Duration(g.Left) * time.Millisecond; left != 2*time.Second {
		b.Errorf("it is valid for %v, and the heartbeat is 2s", left)
	}
	return g
}

// A session that holds something else, and has been silent for longer than a namespace allows, is
// not granted a key there whose validity is over already.
func TestASilentSessionIsNotGrantedThePast(t *testing.T) {
	b := newBeating(t)
	b.grantedBehindAnother(3 * time.Second)
}

// A session whose other hold has infrequent keepalives has answered the last one long ago when it
// is granted a key that requires a heartbeat. Its silence counts from the grant on: the next
// keepalive comes in time for its answer.
func TestAGrantLeavesTimeForAKeepalive(t *testing.T) {
	b := newBeating(t)
	defer b.e.End(b.s)
	g := b.grantedBehindAnother(1900 * time.Millisecond)
	b.answersKeepalives(time.Duration(g.Left)*time.Millisecond+5*time.Second, true)
}

// A reload introduces a heartbeat that the client, which has an older welcome, does not send. Its
// hold there is lost in the end. Until then and behind it there are keepalives for its other hold.
func TestHoldsThatAreSparedDoNotSilenceKeepalives(t *testing.T) {
	b := newBeating(t)
	b.acquire("h:k", time.Minute)
	until := int64(b.acquire("other", 6*time.Second).Deadline)
	if err := b.e.Route([]Namespace{{TTL: 30 * time.Second},
		{Prefix: "h:", TTL: 30 * time.Second, Heartbeat: 2 * time.Second}}, nil); err != nil {
		t.Fatal(err)
	}
	lost := false
	for end := b.now.Load() + int64(80*time.Second); b.now.Load() < end; {
		b.now.Add(int64(20 * time.Millisecond))
		b.k.buf = nil
		b.e.Tick()
		b.answer()
		for in := b.k.buf; len(in) > 0; {
			p, rest, _, err := protocol.Cut(in, protocol.DefaultMaxFrame)
			if err != nil {
				t.Fatal(err)
			}
			m, err := protocol.DecodeMessage(p)
			if err != nil {
				t.Fatal(err)
			}
			switch m.Event {
			case protocol.EventKeepalive:
				at, _, err := m.Keepalive()
				if err != nil {
					t.Fatal(err)
				}
				until = max(until, int64(at))
			case protocol.EventLost:
				if key, _, _, reason, err := m.Lost(); err != nil || key != "h:k" ||
					reason != protocol.LostSilent {
					t.Fatal("lost:", key, reason, err)
				}
				lost = true
			}
			in = rest
		}
		if now := b.now.Load() / int64(time.Millisecond); now > until {
			t.Fatalf("the last keepalive is over, after %v", time.Duration(b.now.Load())-time.Hour)
		}
	}
	if !lost {
		t.Error("the silent client still holds the key that requires a heartbeat")
	}
}

// A reader is delayed between its look at the clock and a request. Meanwhile a validity is stated
// from a later time on, at which the session counts as heard: the request does not move that back.
func TestARequestThatIsReadLateMovesNoSilenceForward(t *testing.T) {
	b := newBeating(t)
	defer b.e.End(b.s)
	if err := b.e.Route([]Namespace{{TTL: 30 * time.Second, Heartbeat: 2 * time.Second}},
		nil); err != nil {
		t.Fatal(err)
	}
	g := b.acquire("k", 30*time.Second)
	late := b.now.Load() - int64(5*time.Second)
	b.now.Store(late)
	send(b.s, &protocol.Request{Op: protocol.OpPing, ID: 6})
	b.now.Store(late + int64(5*time.Second))
	for n := 0; n < 50 && b.s.core.Holds.Load() > 0; n++ {
		b.now.Add(int64(20 * time.Millisecond))
		b.e.Tick()
	}
	if left := int64(g.Deadline) - b.now.Load()/int64(time.Millisecond); left > 0 &&
		b.s.core.Holds.Load() == 0 {
		t.Errorf("the hold is lost %d ms before the end of its stated validity", left)
	}
}

// answersKeepalives runs for d, with a client that answers each keepalive at once, and with a store
// that answers if up. It fails if a hold is lost.
func (b *beating) answersKeepalives(d time.Duration, up bool) {
	b.Helper()
	holds := b.s.core.Holds.Load()
	for end := b.now.Load() + int64(d); b.now.Load() < end; {
		b.now.Add(int64(20 * time.Millisecond))
		b.k.buf = nil
		if b.e.Tick(); b.k.buf != nil && b.k.last(b).Event == protocol.EventKeepalive {
			send(b.s, &protocol.Request{Op: protocol.OpPing, ID: 8})
		}
		if up {
			b.answer()
		}
		if b.s.core.Holds.Load() != holds {
			b.Fatal("a hold of a client that answers each keepalive is lost")
		}
	}
}

// A reload adds a heartbeat when the lease has almost ended, because its store has not answered
// renewals for a while. Then the store answers again. The client can be silent only behind a
// keepalive that it has had time to answer, and the keepalives before the reload were infrequent.
func TestAReloadThatAddsAHeartbeatIsFollowedByAKeepalive(t *testing.T) {
	for _, ttl := range []time.Duration{5 * time.Second, 30 * time.Second} {
		for _, left := range []time.Duration{100 * time.Millisecond, ttl / 10, ttl / 5, 2 * ttl / 5} {
			t.Run(fmt.Sprint(left, " of ", ttl), func(t *testing.T) {
				b := newBeating(t)
				defer b.e.End(b.s)
				b.acquire("k", ttl)
				b.answersKeepalives(ttl*98/100-left, false)
				err := b.e.Route([]Namespace{{TTL: 30 * time.Second, Heartbeat: 2 * time.Second}}, nil)
				if err != nil {
					t.Fatal(err)
				}
				b.answersKeepalives(4*ttl, true)
			})
		}
	}
}

// The daemon is frozen after it has sent a keepalive. The client answers at once. When the daemon
// continues, its timer fires before it reads the answer.
func TestADaemonThatStoodStillCallsNobodySilent(t *testing.T) {
	b := newBeating(t)
	defer b.e.End(b.s)
	if err := b.e.Route([]Namespace{{TTL: 30 * time.Second, Heartbeat: 2 * time.Second}},
		nil); err != nil {
		t.Fatal(err)
	}
	b.acquire("k", 30*time.Second)
	b.now.Add(int64(600 * time.Millisecond))
	b.untilBeat(0)
	b.now.Add(int64(5 * time.Second))
	b.untilBeat(0)
	if b.s.core.Holds.Load() == 0 {
		t.Fatal("the hold is lost before the answer is read")
	}
	send(b.s, &protocol.Request{Op: protocol.OpPing, ID: 8})
	b.answersKeepalives(10*time.Second, true)
}
