package main

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/protocol/client"
	"github.com/locksidecar/locksidecar/upstream/embedded"
	"github.com/locksidecar/locksidecar/upstream/etcd"
	"github.com/locksidecar/locksidecar/upstream/testserver"
	"github.com/locksidecar/locksidecar/upstream/zookeeper"
)

// validityRow is one row of the table of stated validity in PROTOCOL.md.
type validityRow struct{ validity, interval string }

const (
	holdsTTL  = "the hold's ttl"
	shorter   = "the shorter of the two"
	degraded  = "any, if the grant has the flag *degraded*"
	twoStores = "two of these, such as `redis+etcd`"
)

var (
	constantCell = regexp.MustCompile(`^(\d+) s, whatever the ttl$`)
	urlCell      = regexp.MustCompile("^`(ttl|session)` of the store's URL, (\\d+) s by default, whatever the hold's ttl$")
)

// validityTable reads the table from PROTOCOL.md, by kind of store.
func validityTable(t *testing.T) map[string]validityRow {
	t.Helper()
	_, text, _ := strings.Cut(slurp(t, "protocol/PROTOCOL.md"),
		"| kind of store | longest validity | at least one keepalive every |\n|---|---|---|\n")
	table := map[string]validityRow{}
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "|") {
			break
		}
		cells := strings.Split(strings.Trim(line, "| \n"), " | ")
		if len(cells) != 3 {
			t.Fatalf("row with %d cells: %s", len(cells), line)
		}
		table[cells[0]] = validityRow{cells[1], cells[2]}
	}
	return table
}

// longest returns the longest validity of a hold with this TTL, by the table. lease is the TTL of
// the store's session, where it has one.
func (r validityRow) longest(t *testing.T, ttl, lease time.Duration) time.Duration {
	t.Helper()
	switch m := constantCell.FindStringSubmatch(r.validity); {
	case r.validity == holdsTTL:
		return ttl
	case r.validity == shorter:
		return min(ttl, lease)
	case m != nil:
		v, _ := time.ParseDuration(m[1] + "s")
		return v
	case urlCell.MatchString(r.validity):
		return lease
	}
	t.Fatalf("cannot read the cell %q", r.validity)
	return 0
}

// checkDefaults compares the table's defaults and intervals with the program.
func checkDefaults(t *testing.T, table map[string]validityRow) {
	for kind, want := range map[string]string{
		"embedded": fmt.Sprintf("%.0f s, whatever the ttl", embedded.DefaultSession.Seconds()),
		"etcd": fmt.Sprintf("`ttl` of the store's URL, %.0f s by default, whatever the hold's ttl",
			etcd.DefaultTTL.Seconds()),
		"zookeeper": fmt.Sprintf("`session` of the store's URL, %.0f s by default, whatever the hold's ttl", zookeeper.DefaultSession.Seconds()),
	} {
		if got := table[kind].validity; got != want {
			t.Errorf("%s: the table says %q, not %q", kind, got, want)
		}
	}
	for kind, r := range table {
		want := "a third of it"
		if constantCell.MatchString(r.validity) {
			want = fmt.Sprintf("%.1f s", r.longest(t, 0, 0).Seconds()/3)
		}
		if r.interval != want {
			t.Errorf("%s: the table says %q for the interval, not %q", kind, r.interval, want)
		}
	}
}

// PROTOCOL.md has one table of the validity that grants and keepalives state, and of how often
// keepalives come. A daemon on each kind of store does what the table says.
func TestStatedValidity(t *testing.T) {
	table := validityTable(t)
	checkDefaults(t, table)
	tested := map[string]bool{}
	test := func(kind string, start func(t *testing.T) *host) {
		r, ok := table[kind]
		if !ok {
			t.Errorf("the table has no row for %q", kind)
			return
		}
		tested[kind] = true
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			h := start(t)
			ttls := []time.Duration{leaseTime, time.Minute}
			// For Redlock, max_ttl is short as well, because a restarted node does not vote for max_ttl.
			if kind == "redlock" {
				ttls = ttls[:1]
			}
			for _, ttl := range ttls {
				t.Run("ttl "+ttl.String(), func(t *testing.T) {
					t.Parallel()
					h.statesValidity(t, kind, ttl, r.longest(t, ttl, leaseTime))
				})
			}
		})
	}
	test("embedded", func(t *testing.T) *host { return newHost(t) })
	for _, c := range everyStore {
		if kind, _, many := strings.Cut(c.name, "-"); many { // another setup of the same kind
			if !tested[kind] {
				t.Errorf("%s was not tested", kind)
			}
			continue
		}
		test(c.name, func(t *testing.T) *host {
			url, _ := c.start(t)
			if m := urlCell.FindStringSubmatch(table[c.name].validity); m != nil &&
				!strings.Contains(url, m[1]+"="+lease) {
				t.Fatalf("%s does not set %s", url, m[1])
			}
			return newHost(t, "--upstream", url, "--ttl", lease)
		})
	}
	test(twoStores, func(t *testing.T) *host {
		file := filepath.Join(t.TempDir(), "c.yaml")
		yaml := "stores:\n  a: {upstream: \"redis://" + testserver.StartRedis(t).Addr() + "?" +
			patient + "\"}\n" +
			"  b: {upstream: \"etcd://" + testserver.StartEtcd(t).Addr() + "?ttl=" + lease + "&" +
			patient + "\"}\n" +
			"namespaces:\n  \"k\": {store: a, both: b}\n"
		if err := os.WriteFile(file, []byte(yaml), 0o600); err != nil {
			t.Fatal(err)
		}
		return newHost(t, "--config", file)
	})
	test(degraded, func(t *testing.T) *host {
		h := bareHost(t)
		// The daemon serves, but it is not ready.
		h.daemon = h.run("serve", "--upstream", "redis://127.0.0.1:3", "--outage", "local")
		eventually(t, "it serves", func() bool { return strings.Contains(h.daemon.err.String(), `"event":"serving"`) })
		return h
	})
	for kind := range table {
		if !tested[kind] {
			t.Errorf("no test for the table's row %q", kind)
		}
	}
}

// statesValidity acquires a lock with this TTL and reads the validity that the daemon states for
// it. No statement may be above the longest validity, and keepalives may not come too often. A busy
// machine delays keepalives, so the test waits until it has seen an interval as short as the
// table's, and a statement near the longest validity.
func (h *host) statesValidity(t *testing.T, kind string, ttl, longest time.Duration) {
	type statement struct{ sent, left time.Duration } // sent is on the daemon's clock, in milliseconds
	said := make(chan statement, 1024)
	ms := func(n uint64) time.Duration { return time.Duration(n) * time.Millisecond }
	c, err := client.Dial(t.Context(), h.socket,
		client.Options{Name: "test", OnKeepalive: func(b client.Keepalive) {
			said <- statement{ms(b.Until - b.Left), ms(b.Left)}
		}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	key := "k" + ttl.String()
	if w := c.Welcome(); kind != degraded && !namespaceIs(w, key, kind) {
		t.Fatalf("%q is not kept in %s: %+v", key, kind, w.Namespaces)
	}
	g, err := c.Acquire(t.Context(), client.AcquireArgs{Key: key, Wait: bound, TTL: ttl})
	if err != nil {
		t.Fatal(err)
	}
	if (kind == degraded) != (g.Flags&protocol.GrantDegraded != 0) {
		t.Errorf("the grant's flags are %d", g.Flags)
	}
	last := statement{ms(g.Deadline - g.Left), ms(g.Left)}
	interval := longest / 3
	// For a TTL of a minute, the test does not wait for keepalives.
	regular, most := longest > 10*time.Second, last.left
	if last.left > longest {
		t.Errorf("the grant states %v, more than %v", last.left, longest)
	}
	timeout := time.After(2 * bound)
	for !regular || most < longest/2 {
		select {
		case s := <-said:
			gap := s.sent - last.sent
			if s.left > longest {
				t.Errorf("a keepalive states %v, more than %v", s.left, longest)
			}
			if gap < interval*3/4-2*time.Millisecond {
				t.Errorf("a keepalive came after %v, much sooner than %v", gap, interval)
			}
			regular = regular || gap <= interval*9/8+2*time.Millisecond
			last, most = s, max(most, s.left)
		case <-timeout:
			t.Fatalf("longest validity %v: the longest stated was %v; keepalives at a third of it: %v",
				longest, most, regular)
		}
	}
}

// namespaceIs reports whether the welcome keeps the key in a store of that kind.
func namespaceIs(w protocol.Welcome, key, kind string) bool {
	ns := slices.DeleteFunc(slices.Clone(w.Namespaces), func(n protocol.Namespace) bool {
		return !strings.HasPrefix(key, n.Prefix)
	})
	if len(ns) == 0 {
		return false
	}
	n := slices.MaxFunc(ns, func(a, b protocol.Namespace) int {
		return cmp.Compare(len(a.Prefix), len(b.Prefix))
	})
	return n.Store == kind || strings.Contains(kind, "`"+n.Store+"`")
}
