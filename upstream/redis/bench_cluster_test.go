package redis_test

import (
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/redis"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// BenchmarkKinds compares a cluster of three nodes on this machine with one standalone server. Like
// the daemon, it has two lanes with batches of 128 acquires and 128 releases. The 4096 keys are
// scattered over the slots or share 16 hash tags. Two lanes on one standalone server are the
// baseline.
//
//	go test -run - -bench Kinds -benchtime 3s ./upstream/redis
func BenchmarkKinds(b *testing.B) {
	scattered := func(i int) string { return "bench:" + strconv.FormatUint(uint64(i)*0x9e3779b97f4a7c15, 16) }
	tagged := func(i int) string { return "bench:{" + strconv.Itoa(i>>8) + "}" + strconv.Itoa(i) }
	for _, k := range []struct {
		name string
		key  func(int) string
	}{{"scattered", scattered}, {"tagged", tagged}} {
		b.Run("standalone/"+k.name, func(b *testing.B) {
			srv := testserver.StartRedis(b)
			lanes(b, srv.URL(), k.key, only(srv))
		})
		b.Run("cluster/"+k.name, func(b *testing.B) {
			c := testserver.StartRedisCluster(b, 3, 0)
			lanes(b, c.URL(), k.key, func() []*testserver.Redis { return c.Nodes })
		})
	}
}

// lanes runs two lanes of acquires and releases.
func lanes(b *testing.B, url string, key func(int) string, servers func() []*testserver.Redis) {
	const n, keys, width = 128, 4096, 2
	s := openStore(b, url+"?timeout=10s")
	names := make([]string, keys)
	for i := range names {
		names[i] = key(i)
	}
	var token atomic.Uint64
	var left atomic.Int64
	left.Store(int64(b.N))
	before := cpu(servers())
	b.ResetTimer()
	var wg sync.WaitGroup
	for lane := range width {
		wg.Go(func() {
			ops, res := make([]cache.Op, 2*n), make([]cache.Result, 2*n)
			for at := lane * n; left.Add(-1) >= 0; at += width * n {
				for i := range n {
					ops[n+i] = ops[i]
					ops[n+i].Kind = cache.OpRelease
					ops[i] = cache.Op{Kind: cache.OpTry, Key: names[(at+i)%keys], Token: token.Add(1),
						TTL: time.Minute}
				}
				use, got := ops, res
				if at < width*n { // nothing to release yet
					use, got = ops[:n], res[:n]
				}
				if err := s.Apply(b.Context(), use, got); err != nil {
					b.Error(err)
					return
				}
				for i := range n {
					if res[i].Status != cache.Granted {
						b.Error(res[i])
						return
					}
				}
			}
		})
	}
	wg.Wait()
	done := float64(b.N * n)
	b.ReportMetric((cpu(servers())-before)*1e6/done, "redis-µs/pair")
	b.ReportMetric(done/b.Elapsed().Seconds(), "pairs/s")
}

// cpu returns the servers' CPU time so far, in seconds.
func cpu(servers []*testserver.Redis) (sum float64) {
	for _, srv := range servers {
		for _, f := range []string{"used_cpu_user", "used_cpu_sys"} {
			v, _ := strconv.ParseFloat(srv.Info(f), 64)
			sum += v
		}
	}
	return sum
}

// BenchmarkMillion renews a million leases by Apply, in batches of 256, and extends the same keys
// with a plain pipelined PEXPIRE.
//
//	go test -run - -bench Million -benchtime 1x ./upstream/redis
func BenchmarkMillion(b *testing.B) {
	const keys, n = 1_000_000, upstream.MaxBatch
	srv := testserver.StartRedis(b)
	s := openStore(b, srv.URL()+"?timeout=30s")
	raw := goredis.NewClient(&goredis.Options{Addr: srv.Addr(), Protocol: 2, DisableIdentity: true,
		PoolSize: 1, PipelinePoolSize: -1})
	defer raw.Close()
	names := make([]string, keys)
	for i := range names {
		names[i] = "bench:" + strconv.FormatUint(uint64(i)*0x9e3779b97f4a7c15, 16)
	}
	ops, res := make([]cache.Op, n), make([]cache.Result, n)
	all := func(kind cache.OpKind, want cache.Status) {
		for from := 0; from < keys; from += n {
			part := names[from:min(keys, from+n)]
			for i, k := range part {
				ops[i] = cache.Op{Kind: kind, Key: k, Token: uint64(from + i + 1), TTL: time.Hour}
			}
			if err := s.Apply(b.Context(), ops[:len(part)], res[:len(part)]); err != nil {
				b.Fatal(err)
			}
			for i := range part {
				if res[i].Status != want {
					b.Fatal(res[i])
				}
			}
		}
	}
	all(cache.OpTry, cache.Granted)
	var ours, bare time.Duration
	var oursCPU, bareCPU float64
	for b.Loop() {
		start, used := time.Now(), cpu(only(srv)())
		all(cache.OpRenew, cache.Done)
		ours += time.Since(start)
		oursCPU += cpu(only(srv)()) - used
		start, used = time.Now(), cpu(only(srv)())
		for from := 0; from < keys; from += n {
			p := raw.Pipeline()
			for _, k := range names[from:min(keys, from+n)] {
				p.PExpire(b.Context(), redis.DefaultPrefix+k, time.Hour)
			}
			if _, err := p.Exec(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
		bare += time.Since(start)
		bareCPU += cpu(only(srv)()) - used
	}
	b.ReportMetric(oursCPU*1e6/keys/float64(b.N), "redis-µs/renewal")
	b.ReportMetric(bareCPU*1e6/keys/float64(b.N), "redis-µs/pexpire")
	b.ReportMetric(ours.Seconds()/float64(b.N), "s/million")
	b.ReportMetric(bare.Seconds()/float64(b.N), "bare-s/million")
	b.ReportMetric(ours.Seconds()/bare.Seconds(), "ratio")
}
