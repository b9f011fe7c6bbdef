package storetest

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// registryTests check that each host can name the daemons that hold locks.
var registryTests = []test{
	{"every host can name the holder", func(w *world) {
		hs := registered(w, "web-1", "web-2", "web-3")
		for _, key := range []string{"k", "k/ü {x}*?[a]\\%25", "k2"} {
			w.wantHolders(hs[2], key, cache.Exclusive)
			t, _ := hs[0].take(key, cache.Exclusive)
			w.wantHolders(hs[2], key, cache.Exclusive, "web-1")
			w.wantHolders(hs[0], key, cache.Exclusive, "web-1 (mine)")
			w.want(hs[0].release(key, t), cache.Done)
			w.wantHolders(hs[2], key, cache.Exclusive)
		}
	}},
	{"every host can name the readers", func(w *world) {
		hs := registered(w, "web-1", "web-2", "web-3")
		t, _ := hs[0].take("k", cache.Shared)
		hs[1].take("k", cache.Shared)
		w.wantHolders(hs[2], "k", cache.Exclusive, "web-1", "web-2")
		w.wantHolders(hs[0], "k", cache.Exclusive, "web-1 (mine)", "web-2")
		w.want(hs[0].release("k", t), cache.Done)
		w.wantHolders(hs[0], "k", cache.Exclusive, "web-2")
	}},
	{"a waiter is no holder", func(w *world) {
		hs := registered(w, "web-1", "web-2")
		w.skipUnless(!w.env.opts.NoQueue, "the store has no queue")
		hs[0].take("k", cache.Exclusive)
		w.want(hs[1].join("k", hs[1].token()), cache.Queued)
		w.wantHolders(hs[1], "k", cache.Exclusive, "web-1")
		for _, l := range hs[1].holders("k", cache.Exclusive) {
			if l.Waiters > 1 {
				w.Errorf("%+v", l)
			}
		}
	}},
	{"every host can name the holders of permits", func(w *world) {
		hs := registered(w, "web-1", "web-2", "web-3")
		w.skipUnless(hs[0].store.Info().Permits, "the store has no semaphores")
		permit := func(h *host, key string) uint64 {
			t := h.token()
			w.want(h.apply(cache.Op{Kind: cache.OpTry, Mode: cache.Permit, Key: key, Token: t, TTL: long,
				Limit: 3})[0], cache.Granted)
			return t
		}
		t := permit(hs[0], "k")
		permit(hs[0], "k")
		permit(hs[1], "k")
		permit(hs[1], "k2")
		hs[1].take("k", cache.Exclusive) // a lock of the same name is independent
		w.wantHolders(hs[2], "k", cache.Permit, "web-1", "web-1", "web-2")
		w.wantHolders(hs[2], "k2", cache.Permit, "web-2")
		w.wantHolders(hs[2], "k", cache.Exclusive, "web-2")
		w.want(hs[0].apply(cache.Op{Kind: cache.OpRelease, Mode: cache.Permit, Key: "k", Token: t})[0],
			cache.Done)
		w.wantHolders(hs[2], "k", cache.Permit, "web-1", "web-2")
	}},
	{"a listing names the daemons that hold locks", func(w *world) {
		hs := registered(w, "web-1", "web-2")
		lister := hs[1].store.Capabilities().Lister
		w.skipUnless(lister != nil, "the store cannot list")
		hs[0].take("a", cache.Exclusive)
		hs[1].take("b", cache.Shared)
		var all []upstream.Lock
		for cursor := ""; ; {
			locks, next, err := lister.List(w.Context(), "", cursor, 100)
			if err != nil {
				w.Fatal(err)
			}
			all = append(all, locks...)
			if cursor = next; next == "" {
				break
			}
		}
		got := hs[0].names(all)
		for i := range all {
			got[i] = all[i].Key + " " + got[i]
		}
		slices.Sort(got)
		if got = slices.Compact(got); !slices.Equal(got, []string{"a web-1", "b web-2"}) {
			w.Errorf("%q", got)
		}
	}},
	{"a daemon that has not registered has no name", func(w *world) {
		hs := registered(w, "web-1", "")
		hs[1].take("k", cache.Exclusive)
		w.wantHolders(hs[0], "k", cache.Exclusive, "?")
		for _, l := range hs[0].holders("k", cache.Exclusive) {
			if l.Foreign || l.Daemon == "" {
				w.Errorf("%+v", l)
			}
		}
	}},
	{"an entry can be replaced and removed, and expires", func(w *world) {
		hs := registeredHosts(w, w.hosts(3, 0), "web-1", "web-2", "web-3")
		hs[0].take("k", cache.Exclusive)
		hs[0].register("web-9", long)
		w.wantHolders(hs[1], "k", cache.Exclusive, "web-9")
		hs[0].unregister()
		hs[0].unregister() // removing a missing entry is no error
		w.wantHolders(hs[1], "k", cache.Exclusive, "?")
		hs[0].register("web-9", long)
		w.wantHolders(hs[1], "k", cache.Exclusive, "web-9")

		ids := upstream.Daemons(hs[1].holders("k", cache.Exclusive))
		if hs[0].ttls() {
			hs[0].register("web-9", short)
		} else {
			hs[0].end()
		}
		w.eventually("the entry ends", func() bool { return len(hs[1].registrations(ids)) == 0 })
	}},
	{"entries are not listed as locks, and nothing is left of them", func(w *world) {
		hs := registered(w, "web-1", "web-2")
		if lister := hs[0].store.Capabilities().Lister; lister != nil {
			for cursor := ""; ; {
				locks, next, err := lister.List(w.Context(), "", cursor, 100)
				if err != nil || len(locks) > 0 {
					w.Fatalf("%+v, %v", locks, err)
				}
				if cursor = next; next == "" {
					break
				}
			}
		}
		if sw := hs[0].store.Capabilities().Sweeper; sw != nil {
			n, err := sw.Sweep(w.Context(), func(string, uint64) bool { return false })
			if n != 0 || err != nil {
				w.Errorf("%d swept, %v", n, err)
			}
			w.wantRegistered(hs[1], hs[0], "web-1")
		}
		for _, h := range hs {
			h.unregister()
		}
		w.nothingLeft()
	}},
	{"an invalid id has no entry", func(w *world) {
		h := registered(w, "web-1")[0]
		if got := h.registrations([]string{"", "'; --", "../..", "wThcjhdMeW3Yi7_GUSIGTQ",
			"ffffffffffffffff", "\x00"}); len(got) != 0 {
			w.Errorf("%+v", got)
		}
	}},
}

// registered returns hosts that have registered with these names. A host with an empty name has not
// registered.
func registered(w *world, names ...string) []*host {
	w.Helper()
	return registeredHosts(w, w.hosts(len(names)), names...)
}

func registeredHosts(w *world, hs []*host, names ...string) []*host {
	w.Helper()
	w.skipUnless(hs[0].registrar() != nil, "the store does not support registrations")
	for i, name := range names {
		if name != "" {
			hs[i].register(name, long)
		}
	}
	return hs
}

func (h *host) registrar() upstream.Registrar { return h.store.Capabilities().Registrar }

func (h *host) register(name string, ttl time.Duration) {
	h.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	r := upstream.Registration{Host: name, Version: "1.2.3", PID: 4711, Started: 1700000000000}
	if err := h.registrar().Register(ctx, r, ttl); err != nil {
		h.Fatal(err)
	}
}

func (h *host) unregister() {
	h.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	if err := h.registrar().Unregister(ctx); err != nil {
		h.Fatal(err)
	}
}

func (h *host) registrations(ids []string) map[string]upstream.Registration {
	h.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	found, err := h.registrar().Registered(ctx, ids)
	if err != nil {
		h.Fatal(err)
	}
	return found
}

func (h *host) holders(key string, mode cache.Mode) []upstream.Lock {
	h.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	locks, err := h.registrar().Holders(ctx, key, mode, 100)
	if err != nil {
		h.Fatal(err)
	}
	upstream.Ask(ctx, []upstream.Asked{{Key: key, Mode: mode, Locks: locks}})
	return locks
}

// names returns the host names of the daemons that hold locks, and "?" for a daemon without an
// entry.
func (h *host) names(locks []upstream.Lock) []string {
	h.Helper()
	regs := h.registrations(upstream.Daemons(locks))
	names := make([]string, len(locks))
	for i := range locks {
		switch r, ok := regs[locks[i].Daemon]; {
		case !ok:
			names[i] = "?"
		case r.Version != "1.2.3" || r.PID != 4711 || r.Started != 1700000000000:
			h.Errorf("%+v", r)
		default:
			names[i] = r.Host
		}
	}
	return names
}

// wantHolders checks which hosts hold a key, as h sees it.
func (w *world) wantHolders(h *host, key string, mode cache.Mode, want ...string) {
	w.Helper()
	var got []string
	w.eventually(fmt.Sprintf("%q hold %s", want, key), func() bool {
		locks := h.holders(key, mode)
		got = h.names(locks)
		for i := range locks {
			l := &locks[i]
			if l.Mine {
				got[i] += " (mine)"
			}
			shared := mode == cache.Exclusive && len(want) > 1
			if l.Key != key || (l.Mode == cache.Permit) != (mode == cache.Permit) ||
				shared != (l.Mode == cache.Shared) && len(want) > 1 || l.Foreign || l.Held < 0 ||
				l.Held > int64(bound) {
				w.Errorf("%+v", *l)
			}
		}
		slices.Sort(got)
		// Two stores at once list a holder without an entry twice, once for each store.
		if unknown := []string{"?", "?"}; w.env.opts.KeepsPlaces && slices.Equal(got, unknown) {
			got = unknown[:1]
		}
		return slices.Equal(got, want)
	})
}

// wantRegistered checks that h can name other.
func (w *world) wantRegistered(h, other *host, name string) {
	w.Helper()
	t, _ := other.take("registered", cache.Exclusive)
	w.wantHolders(h, "registered", cache.Exclusive, name)
	w.want(other.release("registered", t), cache.Done)
}
