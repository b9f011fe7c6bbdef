package etcd_test

import (
	"testing"

	"github.com/locksidecar/locksidecar/upstream/storetest"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// The note is no lock, so lists do not have it.
func TestNote(t *testing.T) {
	srv := testserver.StartEtcd(t)
	a, b := open(t, srv, ""), open(t, srv, "")
	storetest.Note(t, a, b)
	if locks, _, err := a.List(t.Context(), "", "", 10); err != nil || len(locks) != 0 {
		t.Errorf("the list has %+v (%v)", locks, err)
	}
}
