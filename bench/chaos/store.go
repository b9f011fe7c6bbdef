package chaos

import (
	"context"
	"fmt"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// store is one running store. A function that its kind does not support is nil.
type store struct {
	daemons int
	ttl     time.Duration
	servers []string // addresses that daemons connect to, each through its own link
	url     func(addrs []string) string
	locks   bool // it has locks only, and no semaphores
	renames bool // its servers name each other: daemons must be told their links instead

	freeze, thaw  func()
	kill, stop    func() // kill is sudden, and stop is orderly
	start         func() // starts the store after either
	forgetsOnKill bool   // after kill, its data is gone
	flush         func()
	// fails over to another server; down is called while the old one is away
	failover      func(down func())
	forgetsOnOver bool // data that the old server had not replicated is lost with it
	clock         func(ahead time.Duration)
	residue       func() []string // the residue of daemons that have ended, except for what may stay
}

// kind is one kind of store: its possible faults, and how it is started.
type kind struct {
	can   string
	start func(t *tb) *store
}

// storeKinds has the kinds of stores, by the names in cells. A kind with a clock of its own runs
// under libfaketime.
var storeKinds = map[string]kind{
	"embedded": {"", func(*tb) *store {
		return &store{daemons: 1, ttl: time.Second, url: func([]string) string { return "memory:" }}
	}},
	"redis": {"links stop kill flush", func(t *tb) *store {
		return redis(testserver.StartRedis(t), true)
	}},
	"redis-aof": {"links stop kill", func(t *tb) *store {
		return redis(testserver.StartRedis(t, "--appendonly", "yes", "--appendfsync", "everysec"), false)
	}},
	"redis-clock": {"clock", func(t *tb) *store {
		r := testserver.StartRedisFaketime(t)
		s := redis(r, true)
		s.clock = r.JumpClock
		return s
	}},
	"sentinel": {"links failover", sentinel},
	"cluster":  {"links flush failover", cluster},
	"redlock":  {"links stop kill", redlock},
	"etcd": {"links stop kill flush", func(t *tb) *store {
		return etcd(testserver.StartEtcdCluster(t, 1))
	}},
	"etcd3": {"links stop failover", func(t *tb) *store {
		return etcd(testserver.StartEtcdCluster(t, 3))
	}},
	"zookeeper": {"links stop kill flush", zookeeper},
	"mysql": {"links stop kill flush", func(t *tb) *store {
		return mysql(testserver.StartMariaDB(t))
	}},
	"mysql-clock": {"clock", func(t *tb) *store {
		m := testserver.StartMariaDBWithClock(t)
		s := mysql(m)
		s.clock = m.JumpClock
		return s
	}},
	"postgres": {"links stop kill flush", func(t *tb) *store {
		return postgres(testserver.StartPostgres(t))
	}},
	"postgres-clock": {"clock", func(t *tb) *store {
		p := testserver.StartPostgresWithClock(t)
		s := postgres(p)
		s.clock = p.JumpClock
		return s
	}},
}

func redis(r *testserver.Redis, forgets bool) *store {
	return &store{daemons: 3, ttl: time.Second, servers: []string{r.Addr()},
		url:    func(a []string) string { return "redis://" + a[0] + "?timeout=300ms&waiter_lease=1s" },
		freeze: r.Pause, thaw: r.Resume, kill: r.Kill, stop: r.Stop, start: r.Start,
		forgetsOnKill: forgets,
		flush:         func() { r.Do("FLUSHALL") }, residue: redisResidue(these(r)),
	}
}

// sentinel starts a master that has to be silent for some time before another one is chosen. So a
// busy machine alone does not cause a failover.
func sentinel(t *tb) *store {
	c := testserver.StartRedisSentinel(t, "sentinel down-after-milliseconds "+
		testserver.MasterName+" 2000")
	s := &store{daemons: 3, ttl: 2 * time.Second, renames: true, forgetsOnOver: true}
	for _, n := range slices.Concat(c.Sentinels, c.Nodes) {
		s.servers = append(s.servers, n.Addr())
	}
	s.residue = redisResidue(func() []*testserver.Redis { return []*testserver.Redis{c.Master()} })
	s.url = func(a []string) string {
		return "redis+sentinel://" + strings.Join(a[:len(c.Sentinels)],
			",") + "/" + testserver.MasterName + "?timeout=500ms&waiter_lease=1s"
	}
	s.failover = func(down func()) {
		old := c.Master()
		old.Kill()
		c.WaitOther(old)
		down()
		old.Start()
		for end := time.Now().Add(patience); old.Info("role") != "slave"; time.Sleep(20 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("the old master continues as a master")
			}
		}
	}
	return s
}

// cluster starts masters with one replica each. It is as patient with the masters as sentinel.
func cluster(t *tb) *store {
	const masters = 3
	c := testserver.StartRedisCluster(t, masters, 1, "--cluster-node-timeout", "2000")
	s := &store{daemons: 3, ttl: 2 * time.Second, renames: true, forgetsOnOver: true}
	for _, n := range c.Nodes {
		s.servers = append(s.servers, n.Addr())
	}
	s.residue = redisResidue(c.Masters)
	s.url = func(a []string) string {
		return "redis+cluster://" + strings.Join(a[:masters], ",") + "?timeout=500ms&waiter_lease=1s"
	}
	s.flush = func() {
		for _, m := range c.Masters() {
			m.Do("FLUSHALL")
		}
	}
	turn := 0
	s.failover = func(down func()) {
		slot := c.Slot(fmt.Sprint("lock:k", turn%keysEach))
		turn++
		old := c.Owner(slot)
		old.Kill()
		c.Owner(slot)
		down()
		old.Start()
		c.WaitOK()
	}
	return s
}

// redlock starts three nodes. A fault affects one node at a time.
func redlock(t *tb) *store {
	var nodes []*testserver.Redis
	s := &store{daemons: 3, ttl: 2 * time.Second, locks: true}
	for range 3 {
		n := testserver.StartRedis(t)
		nodes = append(nodes, n)
		s.servers = append(s.servers, n.Addr())
	}
	s.residue = redisResidue(these(nodes...))
	s.url = func(a []string) string { return "redlock://" + strings.Join(a, ",") + "?timeout=300ms" }
	ill := 0
	next := func(f func(*testserver.Redis)) func() {
		return func() { ill = (ill + 1) % len(nodes); f(nodes[ill]) }
	}
	same := func(f func(*testserver.Redis)) func() { return func() { f(nodes[ill]) } }
	s.freeze, s.thaw = next((*testserver.Redis).Pause), same((*testserver.Redis).Resume)
	s.kill, s.stop, s.start = next((*testserver.Redis).Kill), next((*testserver.Redis).Stop),
		same((*testserver.Redis).Start)
	return s
}

// etcd applies faults to the leader, if there are several members. But the member that is stopped
// for a while is a follower: a leader that continues after a stop can revoke live leases
// (docs/operate/stores.md).
func etcd(members []*testserver.Etcd) *store {
	s := &store{daemons: 3, ttl: 2 * time.Second, residue: etcdResidue(members[0])}
	for _, m := range members {
		s.servers = append(s.servers, m.Addr())
	}
	s.url = func(a []string) string { return "etcd://" + strings.Join(a, ",") + "?ttl=2s&timeout=1s" }
	ill := members[0]
	choose := func(f func(*testserver.Etcd), leader bool) func() {
		return func() {
			for _, m := range members {
				if m.IsLeader() == leader {
					ill = m
				}
			}
			f(ill)
		}
	}
	same := func(f func(*testserver.Etcd)) func() { return func() { f(ill) } }
	s.freeze, s.thaw = choose((*testserver.Etcd).Pause, len(members) == 1),
		same((*testserver.Etcd).Resume)
	s.kill, s.stop, s.start = choose((*testserver.Etcd).Kill, true),
		choose((*testserver.Etcd).Stop, true), same((*testserver.Etcd).Start)
	s.flush = func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if _, err := members[0].Admin().Delete(ctx, "/locksidecar/", clientv3.WithPrefix()); err != nil {
			panic(broken{err})
		}
	}
	if len(members) > 1 {
		s.failover = func(down func()) { s.kill(); down(); s.start() }
	}
	return s
}

func zookeeper(t *tb) *store {
	z := testserver.StartZooKeeper(t)
	return &store{daemons: 3, ttl: 2 * time.Second, servers: []string{z.Addr()},
		url:    func(a []string) string { return "zookeeper://" + a[0] + "/chaos?session=2s&timeout=1s" },
		freeze: z.Pause, thaw: z.Resume, kill: z.Kill, stop: z.Stop, start: z.Start,
		flush: func() { deleteUnder(z.Admin(), "/chaos") }, residue: zooResidue(z.Admin, "/chaos"),
	}
}

// deleteUnder deletes every node under dir whose name belongs to a contender for a lock or a
// semaphore.
func deleteUnder(c *zk.Conn, dir string) {
	names, _, err := c.Children(dir)
	if err != nil {
		return
	}
	for _, n := range names {
		at := path.Join(dir, n)
		deleteUnder(c, at)
		if strings.Contains(n, "lock-") || strings.HasPrefix(n, "p-") || strings.HasPrefix(n, "t-") {
			_ = c.Delete(at, -1)
		}
	}
}

func mysql(m *testserver.MariaDB) *store {
	return &store{daemons: 3, ttl: time.Second, servers: []string{m.Addr()},
		url: func(a []string) string {
			u, err := url.Parse(m.URL())
			if err != nil {
				panic(broken{err})
			}
			u.Host = a[0]
			return fmt.Sprint(u, "?timeout=300ms&waiter_lease=1s&poll=50ms")
		},
		freeze: m.Pause, thaw: m.Resume, kill: m.Kill, stop: m.Stop, start: m.Start,
		flush: func() {
			m.Exec("TRUNCATE locks.locksidecar")
			m.Exec("TRUNCATE locks.locksidecar_permits")
		},
		residue: mysqlResidue(m),
	}
}

func postgres(p *testserver.Postgres) *store {
	return &store{daemons: 3, ttl: time.Second, servers: []string{p.Addr()}, locks: true,
		url: func(a []string) string {
			return "postgres://postgres@" + a[0] + "/locks?timeout=300ms&waiter_lease=1s"
		},
		freeze: p.Pause, thaw: p.Resume, kill: p.Kill, stop: p.Stop, start: p.Start,
		flush:   func() { p.Exec("DELETE FROM locksidecar") },
		residue: postgresResidue(p),
	}
}
