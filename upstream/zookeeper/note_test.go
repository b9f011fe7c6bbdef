package zookeeper_test

import (
	"testing"

	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/storetest"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// The note is no lock, so lists do not have it.
func TestNote(t *testing.T) {
	t.Parallel()
	srv := testserver.StartZooKeeper(t)
	a, b := newPeer(t, srv.URL()), newPeer(t, srv.URL())
	storetest.Note(t, a, b)
	var l upstream.Lister = a
	if locks, _, err := l.List(t.Context(), "", "", 10); err != nil || len(locks) != 0 {
		t.Errorf("the list has %+v (%v)", locks, err)
	}
}
