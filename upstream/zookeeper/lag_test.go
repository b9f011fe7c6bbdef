package zookeeper_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/testserver"
	"github.com/locksidecar/locksidecar/upstream/zookeeper"
)

// Members that lag, hang, restart or elect another leader have lost no data.
func TestMembersThatLagHaveLostNoData(t *testing.T) {
	if os.Getenv("LOCKSIDECAR_TEST_LONG") == "" {
		t.Skip("it takes half a minute: set LOCKSIDECAR_TEST_LONG")
	}
	members := testserver.StartZooKeeperEnsemble(t, 3)
	var hosts []string
	for _, m := range members {
		hosts = append(hosts, m.Addr())
	}
	ctx, stop := context.WithTimeout(t.Context(), 30*time.Second)
	defer stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	for range 3 {
		p := newPeer(t, "zookeeper://"+strings.Join(hosts, ",")+"?session=20s&timeout=2s")
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
	}
	for ctx.Err() == nil {
		m := members[rand.IntN(3)]
		if rand.IntN(2) == 0 {
			m.Pause()
			time.Sleep(time.Duration(rand.IntN(2500)) * time.Millisecond)
			m.Resume()
		} else {
			m.Kill()
			m.Start()
		}
	}
}

// losesNothing carries out an op, and reports whether it is Done.
func (p *peer) losesNothing(op *upstream.Op) bool {
	p.Helper()
	res, err := p.apply(*op)
	if errors.Is(err, zookeeper.ErrServer) {
		p.Error(err)
	}
	return res[0].Status == cache.Done
}
