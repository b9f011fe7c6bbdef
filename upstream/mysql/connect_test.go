package mysql_test

import (
	"testing"

	"github.com/locksidecar/locksidecar/upstream/mysql"
	"github.com/locksidecar/locksidecar/upstream/storetest"
)

func openURL(t *testing.T, url string, set ...func(*mysql.Config)) (*peer, error) {
	t.Helper()
	cfg, err := mysql.Parse(url)
	if err != nil {
		t.Fatal(err)
	}
	s, err := mysql.Open(t.Context(), storetest.With(cfg, set))
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = s.Close() })
	return &peer{T: t, Store: s}, nil
}
