package storetest

import (
	"github.com/locksidecar/locksidecar/cache"
)

var permitQueueTests = []test{
	{"tokens that queue for permits get them in the order in which they came", func(w *world) {
		hs := w.hosts(3)
		s := sem{"k", 2}
		held := hs[0].takePermits(s, 2)
		type waits struct {
			h     *host
			token uint64
		}
		var q []waits // two of one host among them
		for _, h := range []*host{hs[1], hs[2], hs[1], hs[0]} {
			x := waits{h, h.token()}
			w.want(h.joinPermit(s, x.token), cache.Queued)
			q = append(q, x)
		}
		for i, t := range held {
			w.want(hs[0].endPermit(cache.OpRelease, s, t), cache.Done)
			for j := len(q) - 1; j > i; j-- {
				w.want(q[j].h.joinPermit(s, q[j].token), cache.Queued)
			}
			w.want(q[i].h.joinPermit(s, q[i].token), cache.Granted)
		}
		// Both permits end at once, so both next tokens may have one, in any order.
		w.want(q[0].h.endPermit(cache.OpRelease, s, q[0].token), cache.Done)
		w.want(q[1].h.endPermit(cache.OpRelease, s, q[1].token), cache.Done)
		w.want(q[3].h.joinPermit(s, q[3].token), cache.Granted)
		w.want(q[2].h.joinPermit(s, q[2].token), cache.Granted)
	}},
	{"a try does not pass those who queue for a permit", func(w *world) {
		hs := w.hosts(3)
		s := sem{"k", 2}
		held := hs[0].takePermits(s, 2)
		q := hs[1].token()
		w.want(hs[1].joinPermit(s, q), cache.Queued)
		w.want(hs[0].endPermit(cache.OpRelease, s, held[0]), cache.Done)
		w.want(hs[2].tryPermit(s, hs[2].token()), cache.Busy)
		w.want(hs[1].joinPermit(s, q), cache.Granted)
		w.want(hs[0].endPermit(cache.OpRelease, s, held[1]), cache.Done)
		hs[2].takePermits(s, 1)
	}},
	{"a host that is gone is skipped by those behind it for a permit", func(w *world) {
		hs := w.hosts(3, 1)
		s := sem{"k", 1}
		t := hs[0].takePermits(s, 1)[0]
		w.want(hs[1].joinPermit(s, hs[1].token()), cache.Queued) // and never again
		q := hs[2].token()
		w.want(hs[2].joinPermit(s, q), cache.Queued)
		if !hs[1].ttls() {
			hs[1].end()
		}
		w.want(hs[0].endPermit(cache.OpRelease, s, t), cache.Done)
		w.eventually("the next but one has it", func() bool {
			return hs[2].joinPermit(s, q).Status == cache.Granted
		})
	}},
	{"a release wakes who is next for a permit", func(w *world) {
		hs := w.hosts(3)
		s := sem{"k", 2}
		hs[1].listening(hs[0])
		hs[2].listening(hs[0])
		held := hs[0].takePermits(s, 2)
		q1, q2 := hs[1].token(), hs[2].token()
		w.want(hs[1].joinPermit(s, q1), cache.Queued)
		w.want(hs[2].joinPermit(s, q2), cache.Queued)
		w.want(hs[0].endPermit(cache.OpRelease, s, held[0]), cache.Done)
		hs[1].hintedPermit(cache.HintAvailable, s, q1)
		w.want(hs[1].joinPermit(s, q1), cache.Granted)
		w.want(hs[0].endPermit(cache.OpRelease, s, held[1]), cache.Done)
		hs[2].hintedPermit(cache.HintAvailable, s, q2)
		w.want(hs[2].joinPermit(s, q2), cache.Granted)
	}},
	{"the withdrawal of the first wakes the next for a permit", func(w *world) {
		hs := w.hosts(3)
		s := sem{"k", 1}
		hs[2].listening(hs[0])
		t := hs[0].takePermits(s, 1)[0]
		q1, q2 := hs[1].token(), hs[2].token()
		w.want(hs[1].joinPermit(s, q1), cache.Queued)
		w.want(hs[2].joinPermit(s, q2), cache.Queued)
		w.want(hs[0].endPermit(cache.OpRelease, s, t), cache.Done)
		w.want(hs[1].endPermit(cache.OpWithdraw, s, q1), cache.Done)
		hs[2].hintedPermit(cache.HintAvailable, s, q2)
		w.want(hs[2].joinPermit(s, q2), cache.Granted)
	}},
	{"those who have permits learn that another host waits, and not that their own does",
		func(w *world) {
			hs := w.hosts(2)
			s := sem{"k", 2}
			hs[0].listening(hs[1])
			held := hs[0].takePermits(s, 2)
			own := hs[0].token()
			w.want(hs[0].joinPermit(s, own), cache.Queued)
			r := hs[0].permit(cache.OpRenew, s, held[0], long)
			w.want(r, cache.Done)
			if r.Contended {
				w.Error("contended by its own host")
			}
			other := hs[1].token()
			hs[0].hearsPermit(func() { w.want(hs[1].joinPermit(s, other), cache.Queued) },
				cache.HintContended, s, held[0])
			r = hs[0].permit(cache.OpRenew, s, held[1], long)
			w.want(r, cache.Done)
			if !r.Contended {
				w.Error("not contended by another host")
			}
		}},
	{"nothing is left of a semaphore when all have gone", func(w *world) {
		hs := w.hosts(2)
		s := sem{"k", 2}
		held := hs[0].takePermits(s, 2)
		q1, q2 := hs[1].token(), hs[1].token()
		w.want(hs[1].joinPermit(s, q1), cache.Queued)
		w.want(hs[1].joinPermit(s, q2), cache.Queued)
		w.want(hs[0].endPermit(cache.OpRelease, s, held[0]), cache.Done)
		w.want(hs[1].joinPermit(s, q1), cache.Granted)
		w.want(hs[1].endPermit(cache.OpWithdraw, s, q2), cache.Done)
		w.want(hs[1].endPermit(cache.OpRelease, s, q1), cache.Done)
		w.want(hs[0].endPermit(cache.OpRelease, s, held[1]), cache.Done)
		w.nothingLeft()
	}},
	{"hosts that queue never have more permits than there are, and each gets its turns",
		func(w *world) { permitRace(w, cache.OpJoin) }},
}
