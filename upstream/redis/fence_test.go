package redis_test

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/redis"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// address is a Unix socket's path that leads to one server and then to another.
type address struct {
	t    *testing.T
	path string
}

func (a *address) leadTo(srv *testserver.Redis) {
	a.t.Helper()
	next := a.path + ".new"
	if err := os.Symlink(srv.Socket(), next); err != nil {
		a.t.Fatal(err)
	}
	if err := os.Rename(next, a.path); err != nil {
		a.t.Fatal(err)
	}
}

// A failover loses the last writes, and the new master's clock is an hour behind. A daemon that was
// connected to the old master gives a larger fence than the one that is lost, and so does its
// successor.
func TestFencesRiseOverAFailoverToAServerWhoseClockIsBehind(t *testing.T) {
	for _, op := range []upstream.Op{{Kind: cache.OpTry}, {Kind: cache.OpTry, Mode: cache.Shared},
		{Kind: cache.OpTry, Mode: cache.Permit, Limit: 1}} {
		t.Run(op.Mode.String(), func(t *testing.T) {
			t.Parallel()
			old := testserver.StartRedis(t, "--repl-diskless-sync-delay", "0")
			next := testserver.StartRedisFaketime(t, "--replicaof", "127.0.0.1 "+strconv.Itoa(old.Port()))
			next.JumpClock(-time.Hour)
			(&peer{T: t}).eventually("the replica follows", func() bool {
				return next.Info("master_link_status") == "up"
			})
			addr := &address{t, filepath.Join(t.TempDir(), "s")}
			addr.leadTo(old)
			opened := time.Now()
			q := &peer{T: t, Store: openStore(t, "unix://"+addr.path)} // it connects, and acquires nothing
			took := time.Since(opened)                                 // its floor may be behind by as much
			next.Do("REPLICAOF", "NO", "ONE")

			p := newPeer(t, old, "")
			op := op
			op.Key, op.Token, op.TTL = "k", p.token(), long
			r := p.apply(op)[0]
			p.want(r, cache.Granted)
			last, granted := r.Base, time.Now()
			old.Kill()
			addr.leadTo(next)

			p.eventually("the floor is above it", func() bool { return time.Since(granted) > took })
			left, err := q.Capabilities().Mover.Leave()
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range []string{"the daemon", "its successor"} {
				h := q
				if name != "the daemon" {
					h = &peer{T: t, Store: openStore(t, next.URL())}
					begin, err := h.Capabilities().Mover.Arrive(left)
					if err != nil {
						t.Fatal(err)
					}
					begin()
				}
				op.Key = name
				h.eventually(name+" gets the lock", func() bool {
					op.Token = h.token()
					r = h.apply(op)[0]
					return r.Status == cache.Granted
				})
				if r.Base <= last {
					t.Errorf("%s: base %d after %d", name, r.Base, last)
				}
				next.Do("DEL", "locksidecar:{}:fence") // the next acquire must not depend on the counter
			}
		})
	}
}

// A node's clock is days ahead for a while and then behind. The counter of a slot still exists
// afterwards.
func TestACounterOfAClusterOutlivesAClockThatWasAhead(t *testing.T) {
	t.Parallel()
	srv := testserver.StartRedisFaketime(t, "--cluster-enabled", "yes")
	srv.Do("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
	p := &peer{T: t}
	p.eventually("the cluster works", func() bool {
		return srv.Admin().ClusterInfo(t.Context()).Val()[:16] == "cluster_state:ok"
	})
	url := "redis+cluster://" + srv.Addr()
	p.Store = openStore(t, url)
	token, last := p.take("k", cache.Exclusive)
	p.want(p.do(cache.OpRelease, 0, "k", token), cache.Done)
	srv.JumpClock(72 * time.Hour)
	slot := srv.Admin().ClusterKeySlot(t.Context(), "lock:k").Val()
	if srv.Do("GET", redis.FenceName(int(slot))) == nil {
		t.Error("the counter has expired")
	}
	srv.JumpClock(-5 * time.Minute)
	q := &peer{T: t, Store: openStore(t, url)} // it has not seen the earlier clock
	if _, base := q.take("k", cache.Exclusive); base <= last {
		t.Errorf("base %d after %d", base, last)
	}
}
