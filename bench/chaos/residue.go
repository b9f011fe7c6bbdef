package chaos

import (
	"context"
	"fmt"
	"os"
	"path"
	"regexp"
	"strings"

	"github.com/go-zookeeper/zk"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// lasting matches the keys that stay in Redis according to the documents: counters of fences, and
// for 90 s the entries of daemons that were killed.
var lasting = regexp.MustCompile(`^locksidecar:\{[^}]*\}:(fence|daemon:.*)$`)

// redisResidue returns the keys that must not be left on some nodes once all daemons have ended.
func redisResidue(nodes func() []*testserver.Redis) func() []string {
	return func() (left []string) {
		for _, n := range nodes() {
			names, _ := n.Do("KEYS", "*").([]any)
			for _, name := range names {
				if name := fmt.Sprint(name); !lasting.MatchString(name) {
					left = append(left, name)
				}
			}
		}
		return left
	}
}

func these(nodes ...*testserver.Redis) func() []*testserver.Redis {
	return func() []*testserver.Redis { return nodes }
}

func etcdResidue(member *testserver.Etcd) func() []string {
	return func() (left []string) {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		r, err := member.Admin().Get(ctx, "/locksidecar/", clientv3.WithPrefix(), clientv3.WithKeysOnly())
		if err != nil {
			return []string{err.Error()}
		}
		for _, kv := range r.Kvs {
			// docs/operate/stores.md says that it stays
			if key := string(kv.Key); key != "/locksidecar/%note" {
				left = append(left, key)
			}
		}
		return left
	}
}

// zooResidue returns contenders for locks and permits, and entries of daemons. The nodes above them
// stay for some minutes.
func zooResidue(c func() *zk.Conn, dir string) func() []string {
	return func() []string { return contendersUnder(c(), dir) }
}

func contendersUnder(c *zk.Conn, dir string) (left []string) {
	names, _, err := c.Children(dir)
	if err != nil {
		return nil
	}
	for _, n := range names {
		at := path.Join(dir, n)
		left = append(left, contendersUnder(c, at)...)
		if strings.Contains(n, "lock-") || strings.HasPrefix(n, "p-") || strings.HasPrefix(n, "t-") ||
			strings.HasPrefix(n, "daemon-") {
			left = append(left, at)
		}
	}
	return left
}

// mysqlResidue returns the rows that still show a holder. Rows of fences stay for a while. So do the
// semaphores' own rows, whose end may be one that is never reached.
func mysqlResidue(m *testserver.MariaDB) func() []string {
	return func() (left []string) {
		for _, table := range []string{"locksidecar", "locksidecar_permits"} {
			where := " WHERE "
			if table == "locksidecar_permits" {
				where += "token <> '~' AND "
			}
			n := m.Value("SELECT COUNT(*) FROM locks." + table + where +
				"ends > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))")
			if n != "0" {
				left = append(left, n+" rows of "+table)
			}
		}
		return left
	}
}

// postgresResidue returns rows with leases or places that have not ended.
func postgresResidue(p *testserver.Postgres) func() []string {
	return func() (left []string) {
		n := p.Value("SELECT count(*) FROM locksidecar WHERE ends > extract(epoch FROM clock_timestamp()) * 1000000")
		if n != "0" {
			left = append(left, n+" rows of locksidecar")
		}
		return left
	}
}

// noResidue waits until no store has any residue of the daemons, which have all ended. The entries
// of a daemon that was killed expire by themselves.
func (s *storm) noResidue() {
	for _, d := range s.depots {
		var left []string
		if !s.until(2*patience, func() bool { left = d.residue(); return len(left) == 0 }) {
			s.fail("residue", "%s: %d are left when all daemons have ended: %s", d.name, len(left),
				strings.Join(left[:min(len(left), 8)], "; "))
		}
	}
	for _, st := range s.sites {
		b, err := os.ReadFile(st.socket() + ".state")
		if err != nil || !strings.Contains(string(b), `"until":0`) {
			s.fail("residue", "the embedded store of daemon %d: %v %s", st.no, err, b)
		}
		for _, name := range []string{st.socket(), st.socket() + ".admin"} {
			if _, err := os.Lstat(name); err == nil {
				s.fail("residue", "%s is left", name)
			}
		}
	}
}
