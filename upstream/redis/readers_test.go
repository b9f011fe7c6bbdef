package redis_test

import (
	"testing"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream/storetest"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// A reader of a host replaces an earlier one of the same host, whose release is pending and which
// was the only reader. The set of readers expires, as the lock does.
func TestTheSetOfReadersEndsIfItsOnlyReaderIsReplaced(t *testing.T) {
	t.Parallel()
	srv := testserver.StartRedis(t)
	p := newPeer(t, srv, "")
	for range 2 {
		storetest.Want(t, p.do(cache.OpTry, cache.Shared, "k", p.token()), cache.Granted)
	}
	const set = "locksidecar:{}:readers:lock:k"
	if left := srv.Admin().PTTL(t.Context(), set).Val(); left <= 0 {
		t.Errorf("%s ends in %v", set, left)
	}
	if n := srv.Admin().ZCard(t.Context(), set).Val(); n != 1 {
		t.Errorf("it has %d readers", n)
	}
}
