package etcd_test

import (
	"context"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// A server is stopped while a daemon asks. Neither the questions nor their removal delays the
// caller until the server's timeout.
func TestQuestionsToAServerThatStandsStillDoNotKeepTheCaller(t *testing.T) {
	const timeout = 30 * time.Second
	srv := testserver.StartEtcd(t)
	holder, asker := newPeer(t, srv, "ttl=60s"), open(t, srv, "ttl=60s&timeout="+timeout.String())
	holder.Answer(func(_ string, _ cache.Mode, tokens []uint64) []int64 {
		held := make([]int64, len(tokens))
		for i := range held {
			held[i] = int64(time.Hour)
		}
		return held
	})
	keys := []string{"a", "b", "c"}
	for _, k := range keys {
		holder.take(k, cache.Exclusive)
	}
	ask := func(ctx context.Context) (answers int) {
		var all []upstream.Asked
		for _, k := range keys {
			locks, err := asker.Holders(t.Context(), k, cache.Exclusive, 1)
			if err != nil || len(locks) != 1 {
				t.Fatal(locks, err)
			}
			all = append(all, upstream.Asked{Key: k, Locks: locks})
		}
		if ctx == nil {
			srv.Pause()
			defer srv.Resume()
			ctx = t.Context()
		}
		begin := time.Now()
		upstream.Ask(ctx, all)
		if took := time.Since(begin); took > timeout/2 {
			t.Errorf("Ask took %v", took)
		}
		for _, a := range all {
			if a.Locks[0].Held >= int64(time.Hour) {
				answers++
			}
		}
		return answers
	}
	allAnswered := func(what string) {
		t.Helper()
		for end := time.Now().Add(bound); ask(t.Context()) < len(keys); {
			if time.Now().After(end) {
				t.Fatalf("%s: not all three questions to one daemon are answered", what)
			}
		}
	}
	allAnswered("at first")
	if n := ask(nil); n > 0 {
		t.Errorf("%d answers through a server that stands still", n)
	}
	allAnswered("behind that")
	for end := time.Now().Add(bound); ; time.Sleep(10 * time.Millisecond) {
		r, err := srv.Admin().Get(t.Context(), dir+"%session/", clientv3.WithPrefix())
		if err != nil {
			t.Fatal(err)
		}
		left := 0
		for _, kv := range r.Kvs {
			if strings.Contains(string(kv.Key), "/ask/") {
				left++
			}
		}
		if left == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%d questions are left: %v", left, r.Kvs)
		}
	}
}
