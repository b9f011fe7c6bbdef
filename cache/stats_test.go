package cache

import (
	"math"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

func TestBucketsEndWhereTheySay(t *testing.T) {
	for d := int64(1); d < 1<<57; d += d/7 + 1 {
		i, s := bucketOf(d), float64(d)/1e9
		if i < HistFirst {
			if s > 1.0/(1<<20) {
				t.Errorf("%v counts as zero", time.Duration(d))
			}
			continue
		}
		const tiny = 1e-12
		if lo, hi := math.Exp2(float64(i-1)/4), math.Exp2(float64(i)/4); s < lo*(1-tiny) ||
			s > hi*(1+tiny) {
			t.Errorf("%v is in bucket %d, from %g to %g s", time.Duration(d), i, lo, hi)
		}
	}
	if i := bucketOf(int64(time.Second)); i != 0 {
		t.Errorf("a second is in bucket %d: ends are inclusive", i)
	}
	var h Histogram
	h.Observe(0)
	h.Observe(int64(time.Hour) * 10000)
	if h.Zero != 1 || h.Buckets[HistBuckets-1] != 1 || h.Count() != 2 {
		t.Errorf("%+v", h)
	}
}

func TestWhatHappensIsCounted(t *testing.T) {
	b := newBench(t, nil)
	one, two, three := b.session(), b.session(), b.session()
	b.acquire(one, "k", nil)
	f := b.granted(OpTry, 7)
	b.acquire(one, "k", nil)                                                // re-entered
	b.acquire(two, "k", nil)                                                // busy
	b.acquire(two, "k", waits)                                              // gets it after 2 s
	b.acquire(three, "k", func(q *Acquire) { q.Wait = int64(time.Second) }) // does not
	b.tick(2 * time.Second)
	b.release(one, "k", f)
	b.release(one, "k", f)
	b.tab.EndSession(two, 10, b.now, &b.out)
	b.take()
	b.answer(b.op(OpRelease), Result{Status: Done})
	b.empty()
	all, stores := b.tab.AddStats(nil, nil)
	s := all[0]
	for code, want := range map[Outcome]uint64{
		Outcome(protocol.OK): 2, OutReentered: 1, Outcome(protocol.Busy): 1,
		Outcome(protocol.Timeout): 1, OutGone: 0,
	} {
		if s.Acquires[code] != want {
			t.Errorf("outcome %d: %d, want %d", code, s.Acquires[code], want)
		}
	}
	if s.Contended != 2 || s.Handoffs != 1 || s.Lingered != 0 ||
		s.Releases != [causes]uint64{1, 1} || s.Holds != 0 || s.Waiters != 0 ||
		s.Unaccounted() != 0 {
		t.Errorf("%+v", s)
	}
	if n, sum := s.Wait.Count(), s.Wait.Sum; n != 2 || sum != 2*second {
		t.Errorf("%d waits of %v", n, time.Duration(sum))
	}
	if n, sum := s.Hold.Count(), s.Hold.Sum; n != 2 || sum != 2*second {
		t.Errorf("%d holds of %v", n, time.Duration(sum))
	}
	if stores[0].Held != 0 {
		t.Errorf("%+v", stores[0])
	}
}

func TestRenewalsAreCountedWithTheirSlack(t *testing.T) {
	b := newBench(t, nil)
	s := b.session()
	b.acquire(s, "k", nil)
	b.granted(OpTry, 7)
	l := b.tab.locks["k"].lease()
	renew := func(r Result) {
		b.tab.RenewDue(l, l.token, b.now, &b.out)
		b.take()
		op := b.op(OpRenew)
		sent := b.now
		b.now += second
		b.tab.Result(&op, &r, sent, b.now, &b.out)
		b.take()
	}
	b.now += 10 * second
	renew(Result{Status: Done})
	renew(Result{Status: Unknown})
	b.now += second
	renew(Result{Status: NotHeld})
	all, stores := b.tab.AddStats(nil, nil)
	st := stores[0]
	if st.Renewed != 1 || st.Unanswered != 1 || st.NotHeld != 1 {
		t.Errorf("%+v", st)
	}
	if want := LeaseDeadline(0, 30*second) - 11*second; st.Slack.Sum != want ||
		st.Slack.Count() != 1 {
		t.Errorf("slack of %v, want %v", time.Duration(st.Slack.Sum), time.Duration(want))
	}
	if all[0].Lost[protocol.LostGone] != 1 || all[0].Unaccounted() != 0 {
		t.Errorf("%+v", all[0])
	}
}

func TestTheOldestHoldIsKnown(t *testing.T) {
	b := newBench(t, nil)
	s := b.session()
	fences := map[string]uint64{}
	began := b.now
	for i, k := range []string{"a", "b", "c"} {
		b.acquire(s, k, nil)
		fences[k] = b.granted(OpTry, uint64(7+i))
		b.now += second
	}
	for _, step := range []struct {
		release string
		want    int64
	}{{"b", began}, {"a", began + 2*second}, {"c", 0}} {
		b.release(s, step.release, fences[step.release])
		if got := b.tab.OldestSince(); got != step.want {
			t.Errorf("after %s: since %d, want %d", step.release, got, step.want)
		}
	}
	b.ops = nil
}
