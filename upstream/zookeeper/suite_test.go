package zookeeper_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/storetest"
	"github.com/locksidecar/locksidecar/upstream/testserver"
	"github.com/locksidecar/locksidecar/upstream/zookeeper"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testserver.M{M: m}) }

// start is the beginning of the tests' boot clock. Their machine is not suspended.
var start = time.Now().Add(-time.Hour)

func clock() int64 { return int64(time.Since(start)) }

func TestConformance(t *testing.T) {
	t.Parallel()
	srv := testserver.StartZooKeeper(t)
	newHost := func(options string) storetest.NewHost {
		return func(t testing.TB, prefix string) upstream.Store {
			cfg := config(t, srv.URL()+"/"+strings.TrimSuffix(prefix, ":")+options)
			s, err := zookeeper.Open(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
	}
	storetest.Run(t, newHost("?session=30s&timeout=10s"),
		storetest.Options{NewShortLived: newHost("?session=6s&timeout=3s"),
			Server: &storetest.Server{Pause: srv.Pause, Resume: srv.Resume, Restart: srv.Restart},
			Residue: func(t testing.TB, prefix string) []string {
				return residue(t, srv, "/"+strings.TrimSuffix(prefix, ":"))
			}})
}

// residue returns the nodes below chroot. The server removes the nodes of locks after a while, and
// our own nodes after the last session.
func residue(t testing.TB, srv *testserver.ZooKeeper, chroot string) []string {
	t.Helper()
	var left []string
	c := srv.Admin()
	locks, _, err := c.Children(chroot)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range locks {
		if l == ".locksidecar" {
			sems, _, _ := c.Children(chroot + "/" + l + "/permits")
			for _, sem := range sems {
				left = append(left, "permits/"+sem)
				nodes, _, _ := c.Children(chroot + "/" + l + "/permits/" + sem)
				for _, n := range nodes {
					left = append(left, "permits/"+sem+"/"+n)
				}
			}
			continue
		}
		left = append(left, l)
		nodes, _, _ := c.Children(chroot + "/" + l)
		for _, n := range nodes {
			left = append(left, l+"/"+n)
		}
	}
	slices.Sort(left)
	return left
}
