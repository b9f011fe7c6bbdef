package storetest

import (
	"context"
	"time"

	"github.com/locksidecar/locksidecar/cache"
)

// Server has the faults that a test can cause at the server behind the stores.
type Server struct {
	Pause, Resume func() // between them the server answers nothing and keeps all data
	Restart       func() // a crash; the server may lose data as its kind of store does
}

// faultTests are about a server that does not answer. They need Options.Server.
var faultTests = []test{
	{"an acquire that was not answered is settled by its token", func(w *world) {
		hs := w.hosts(2)
		for _, kind := range []cache.OpKind{cache.OpTry, cache.OpJoin} {
			k := kind.String()
			t := hs[0].token()
			w.whilePaused(func() {
				w.unanswered(hs[0].applyBriefly(cache.Op{Kind: kind, Key: k, Token: t, TTL: outlived}))
			})
			w.settled(hs[0], cache.Op{Kind: cache.OpWithdraw, Key: k, Token: t})
			w.eventually("another host gets the key", func() bool {
				return hs[1].try(k, hs[1].last.Load()+1).Status == cache.Granted
			})
			w.want(hs[0].try(k, hs[0].token()), cache.Busy)
		}
	}},
	{"a release that was not answered is settled by its token", func(w *world) {
		hs := w.hosts(2)
		for _, mode := range []cache.Mode{cache.Exclusive, cache.Shared} {
			k := mode.String()
			t, base := hs[0].take(k, mode)
			op := cache.Op{Kind: cache.OpRelease, Mode: mode, Key: k, Token: t}
			w.whilePaused(func() { w.unanswered(hs[0].applyBriefly(op)) })
			w.settled(hs[0], op)
			var r cache.Result
			w.eventually("another host gets the key", func() bool {
				r = hs[1].try(k, hs[1].last.Load()+1)
				return r.Status == cache.Granted
			})
			if r.Base <= base {
				w.Errorf("it has base %d after %d", r.Base, base)
			}
		}
	}},
	{"a lease that was not lost continues after a silence", func(w *world) {
		hs := w.hosts(2)
		t, _ := hs[0].take("k", cache.Exclusive)
		renewal := cache.Op{Kind: cache.OpRenew, Key: "k", Token: t, TTL: long}
		w.whilePaused(func() { w.unanswered(hs[0].applyBriefly(renewal)) })
		r := w.settled(hs[0], cache.Op{Kind: cache.OpRenew, Key: "k", Token: t, TTL: long})
		other := hs[1].applySurely(cache.Op{Kind: cache.OpTry, Key: "k", Token: hs[1].token(), TTL: long})
		if (r.Status == cache.Done) != (other.Status == cache.Busy) {
			w.Errorf("the renewal is %v, and another's try %v", r.Status, other.Status)
		}
	}},
	{"after a restart a lease stands or is not held, and fences rise", func(w *world) {
		hs := w.hosts(2)
		t, base := hs[0].take("k", cache.Exclusive)
		w.env.opts.Server.Restart()
		r := w.settled(hs[0], cache.Op{Kind: cache.OpRenew, Key: "k", Token: t, TTL: long})
		op := cache.Op{Kind: cache.OpTry, Key: "k", Token: hs[1].token(), TTL: long}
		other := hs[1].applySurely(op)
		if r.Status == cache.Done {
			w.want(other, cache.Busy)
			w.settled(hs[0], cache.Op{Kind: cache.OpRelease, Key: "k", Token: t})
			op.Token = hs[1].token()
			other = hs[1].applySurely(op)
		}
		w.want(other, cache.Granted)
		if other.Base <= base {
			w.Errorf("the next holder has base %d after %d", other.Base, base)
		}
	}},
}

const (
	outlived = 2 * time.Second        // a TTL that a test can wait out
	patience = 300 * time.Millisecond // of an op that gets no answer
)

// whilePaused calls do while the server answers nothing.
func (w *world) whilePaused(do func()) {
	w.env.opts.Server.Pause()
	defer w.env.opts.Server.Resume()
	do()
}

// applyBriefly applies an op and gives up soon.
func (h *host) applyBriefly(op cache.Op) cache.Result {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	results := []cache.Result{{Status: 99}}
	_ = h.store.Apply(ctx, []cache.Op{op}, results)
	return results[0]
}

// unanswered fails the test unless r is Unknown or Refused.
func (w *world) unanswered(r cache.Result) {
	w.Helper()
	if r.Status != cache.Unknown && r.Status != cache.Refused || r.Err == nil {
		w.Fatalf("without an answer it is %v (%v)", r.Status, r.Err)
	}
}

// applySurely repeats an op until its result is not Unknown.
func (h *host) applySurely(op cache.Op) (r cache.Result) {
	h.Helper()
	h.eventually(op.Kind.String()+" is answered", func() bool {
		r = h.apply(op)[0]
		return r.Status != cache.Unknown && r.Status != cache.Refused
	})
	return r
}

// settled repeats an op until its result is Done or NotHeld.
func (w *world) settled(h *host, op cache.Op) cache.Result {
	w.Helper()
	r := h.applySurely(op)
	if r.Status != cache.Done && r.Status != cache.NotHeld {
		w.Fatalf("%v is %v", op.Kind, r.Status)
	}
	return r
}
