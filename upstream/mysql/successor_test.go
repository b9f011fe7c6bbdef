package mysql_test

import (
	"testing"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream/mysql"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// An acquire is repeated by the process that has taken over, because its answer was lost. The row
// must not take it for the earlier process's request, which has the same token.
func TestASuccessorRepeatsAnAcquireUnderAnotherNumber(t *testing.T) {
	t.Parallel()
	srv := testserver.StartMariaDB(t, quickly)
	for name, set := range map[string]func(*mysql.Config){
		"returning": func(*mysql.Config) {}, "not returning": mysql.WithoutReturning} {
		t.Run(name, func(t *testing.T) {
			p := newPeer(t, srv.URL(), set)
			token := p.token()
			p.want(p.do(cache.OpJoin, cache.Shared, name, token), cache.Granted)
			next := newPeer(t, srv.URL(), set,
				func(c *mysql.Config) { c.Instance = p.Instance() })
			next.want(next.do(cache.OpJoin, cache.Shared, name, token), cache.Granted)
			next.want(next.do(cache.OpRelease, cache.Shared, name, token), cache.Done)
			newPeer(t, srv.URL(), set).take(name, cache.Exclusive)
		})
	}
}
