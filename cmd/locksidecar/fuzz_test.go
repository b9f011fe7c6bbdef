package main

import (
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/cmd/locksidecar/internal/config"
	"github.com/locksidecar/locksidecar/upstream/storeurl"
)

// FuzzStoreURL checks that any store URL, with a password in it or in another field, is either read
// or refused. What the program shows of it has no password.
func FuzzStoreURL(f *testing.F) {
	for _, scheme := range upstreams() {
		f.Add(scheme+"//user:", "@host1,host2:7,[::1]/3?prefix=p&timeout=2s")
		f.Add(scheme+"//:", "@host/name?tls=true&ca=/x&cert=/y&key=/z&server_name=n")
		f.Add(scheme+"//host", "")
	}
	f.Add("redis+sentinel://u:", "@a,b/master?sentinel_user=s&sentinel_password_file=/f&wait_replicas=1&wait_aof=1,0")
	f.Add("redlock://u:", "@a,b,c?max_ttl=5s&drift=0.02")
	f.Add("etcd://u:", "@%41/a?lease=5s")
	const secret = "hunter2-sesame"
	f.Fuzz(func(t *testing.T, front, back string) {
		// A password in a URL follows the user's name and a colon, and ends at the last @ before a slash.
		in := strings.HasSuffix(front, ":") && strings.Count(front, ":") == 2 &&
			strings.Contains(front, "://") && strings.HasPrefix(back, "@") &&
			!strings.ContainsAny(strings.SplitN(front, "://", 2)[1], "/?#@") &&
			!strings.Contains(back[1:], "@")
		c := config.Default(func(string) (string, bool) { return "", false })
		for _, s := range []config.StoreSettings{{Upstream: front + secret + back},
			{Upstream: front + back, Password: secret, Username: "user"}} {
			if s.Password == "" && !in {
				continue
			}
			shown := storeurl.Redact(s.Upstream)
			p, err := planStore(c, &s)
			if err != nil {
				shown += err.Error()
			} else {
				shown += p.where + p.scope + p.safety
			}
			if strings.Contains(shown, secret) {
				t.Errorf("%q is shown as %q", s.Upstream, shown)
			}
		}
	})
}
