package etcd

import (
	"strings"
	"testing"
)

// FuzzForeignKeys checks keys of other clients beside ours. A key that is read as ours must have
// the form of our keys.
func FuzzForeignKeys(f *testing.F) {
	for _, k := range []string{"/x/lock/5-1", "/x/lock/5", "/x//", "/x/%2", "/x/%session/5",
		"/x/a%2Fb/-1", "/x/lock/ffffffffffffffff-0", "/y", ""} {
		f.Add(k, "permit 1f")
	}
	n := names{root: "/x/"}
	f.Fuzz(func(t *testing.T, k, value string) {
		lock, dir, ok := n.lock(k)
		if ok && (!strings.HasPrefix(k, dir) || !strings.HasPrefix(dir, n.root)) {
			t.Errorf("%q is a key of %q, in %q", k, lock, dir)
		}
		if ok {
			lease, token, ours := holder(k, dir)
			if l, to, again := holder(key(dir, lease, token), dir); ours &&
				(l != lease || to != token || !again) {
				t.Errorf("%q is lease %x, token %d", k, lease, token)
			}
		}
		if token := permitToken(value); token != 0 && !strings.HasPrefix(value, valuePermit) {
			t.Errorf("%q is of %d", value, token)
		}
	})
}
