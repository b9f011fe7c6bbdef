package testserver

import (
	"errors"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/go-zookeeper/zk"
)

// M runs the tests of one package, for goleak.VerifyTestMain. StartZooKeeper then returns servers of
// earlier tests, because Java takes longer to start than most tests do. A server is used again with
// empty data, unless its test has failed, or has stopped the server or sent it a signal. Run ends
// all servers after the last test.
type M struct{ *testing.M }

// Run runs the tests and returns the exit code.
func (m M) Run() int {
	reuse.on = true
	code := m.M.Run()
	for _, all := range reuse.idle {
		for _, z := range all {
			z.owner.end()
		}
	}
	return code
}

var reuse = struct {
	on   bool // set before the first test
	mu   sync.Mutex
	idle map[string][]*ZooKeeper // guarded by mu; by settings
}{idle: map[string][]*ZooKeeper{}}

// owner is used in place of a test to start a server that outlasts the test.
type owner struct {
	testing.TB
	cleanups []func()
}

// Cleanup records f for end.
func (o *owner) Cleanup(f func()) { o.cleanups = append(o.cleanups, f) }

// end ends the server and removes what belongs to it.
func (o *owner) end() {
	for _, f := range slices.Backward(o.cleanups) {
		f()
	}
}

// reusedZooKeeper returns an idle server with settings, or starts one.
func reusedZooKeeper(t testing.TB, settings []string) *ZooKeeper {
	t.Helper()
	kind := strings.Join(settings, "\n")
	reuse.mu.Lock()
	var z *ZooKeeper
	if n := len(reuse.idle[kind]); n > 0 {
		z = reuse.idle[kind][n-1]
		reuse.idle[kind] = reuse.idle[kind][:n-1]
	}
	reuse.mu.Unlock()
	o := &owner{}
	if z != nil {
		o = z.owner
	}
	o.TB = t
	t.Cleanup(func() {
		if z == nil || t.Failed() || z.disturbed || z.empty() != nil {
			o.end()
			return
		}
		z.closeAdmin()
		reuse.mu.Lock()
		defer reuse.mu.Unlock()
		reuse.idle[kind] = append(reuse.idle[kind], z)
	})
	if z == nil {
		z = startZooKeepers(o, 1, settings)[0]
		z.owner = o
	}
	return z
}

// empty deletes all nodes except ZooKeeper's own.
func (z *ZooKeeper) empty() error {
	var remove func(node string) error
	remove = func(node string) error {
		children, _, err := z.Admin().Children(node)
		for _, c := range children {
			if at := path.Join(node, c); err == nil && at != "/zookeeper" {
				err = remove(at)
			}
		}
		if err == nil && node != "/" {
			err = z.Admin().Delete(node, -1)
		}
		if errors.Is(err, zk.ErrNoNode) { // the node of a session that has just ended
			err = nil
		}
		return err
	}
	return remove("/")
}
