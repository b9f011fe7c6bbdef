package embedded_test

import (
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/embedded"
	"github.com/locksidecar/locksidecar/upstream/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start is where the tests' clock begins: it has counted for an hour.
var start = time.Now().Add(-time.Hour)

// clock replaces the boot clock, because the tests' machine is not suspended.
func clock() int64 { return int64(time.Since(start)) }

func TestConformance(t *testing.T) {
	for name, path := range map[string]func(t testing.TB) string{
		"with a state file": func(t testing.TB) string { return filepath.Join(t.TempDir(), "state") },
		"in memory alone":   func(testing.TB) string { return "" },
	} {
		t.Run(name, func(t *testing.T) {
			storetest.Run(t, func(t testing.TB, _ string) upstream.Store {
				s, err := embedded.Open(embedded.Options{Path: path(t), Clock: clock})
				if err != nil {
					t.Fatal(err)
				}
				return s
			}, storetest.Options{OneHost: true})
		})
	}
}
