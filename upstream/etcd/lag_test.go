package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/etcd"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// Members that lag, hang, restart, compact or change their leader have lost no data. If they seemed
// to, a store would lose all its locks.
func TestMembersThatLagHaveLostNoData(t *testing.T) {
	if os.Getenv("LOCKSIDECAR_TEST_LONG") == "" {
		t.Skip("it takes half a minute: set LOCKSIDECAR_TEST_LONG")
	}
	members := testserver.StartEtcdCluster(t, 3, "--snapshot-count", "200")
	ctx, stop := context.WithTimeout(t.Context(), 25*time.Second)
	defer stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	for i := range 4 { // each of three stores knows one member, and the last one knows all
		use := members
		if i < 3 {
			use = members[i : i+1]
		}
		p := &peer{TB: t, Store: openConfig(t, config(t, "timeout=2s&ttl=60s", use...))}
		wg.Go(func() {
			for ctx.Err() == nil {
				_, _ = p.Sweep(ctx, func(string, uint64) bool { return true })
				_, _, _ = p.Note(ctx)
				time.Sleep(20 * time.Millisecond)
			}
		})
		for mode := cache.Exclusive; mode <= cache.Permit; mode++ {
			wg.Go(func() {
				for token := uint64(mode) << 32; ctx.Err() == nil; token++ {
					op := upstream.Op{Kind: cache.OpTry, Mode: mode, Limit: 3, Token: token, TTL: long,
						Key: fmt.Sprint(mode, rand.IntN(3))}
					p.losesNothing(&op)
					for op.Kind = cache.OpWithdraw; !p.losesNothing(&op) && ctx.Err() == nil; {
						time.Sleep(50 * time.Millisecond)
					}
				}
			})
		}
		defer func() {
			for len(p.Sessions()) > 0 {
				if s := <-p.Sessions(); s.Lost || s.No > 1 {
					t.Errorf("store %d has lost its session", i)
				}
			}
		}()
	}
	for ctx.Err() == nil {
		disturb(t, ctx, members, rand.IntN(3))
	}
	wg.Wait()
}

// losesNothing carries out an op, and reports whether it is Done.
func (p *peer) losesNothing(op *upstream.Op) bool {
	p.Helper()
	res, err := p.apply(*op)
	if errors.Is(err, etcd.ErrServer) {
		p.Error(err)
	}
	return res[0].Status == cache.Done
}

// disturb does something to a member that loses no data.
func disturb(t *testing.T, ctx context.Context, members []*testserver.Etcd, i int) {
	m := members[i]
	short, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	switch rand.IntN(5) {
	case 0:
		m.Pause()
		time.Sleep(time.Duration(rand.IntN(2500)) * time.Millisecond)
		m.Resume()
	case 1:
		m.Kill()
		time.Sleep(time.Duration(rand.IntN(1500)) * time.Millisecond)
		m.Start()
	case 2:
		l := leader(t, members)
		_, _ = members[l].Admin().MoveLeader(short, memberID(t, members[(l+1)%3]))
	case 3:
		if r, err := m.Admin().Get(short, "x"); err == nil {
			_, _ = m.Admin().Compact(short, r.Header.Revision)
		}
		_, _ = m.Admin().Defragment(short, m.Addr())
	case 4:
		for range 200 {
			_, _ = m.Admin().Put(short, "/other", "")
		}
	}
}
