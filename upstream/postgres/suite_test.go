package postgres_test

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/postgres"
	"github.com/locksidecar/locksidecar/upstream/storetest"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// quickly is for servers whose crashes a test does not examine.
const quickly = "fsync=off"

// reach opens a store for the suite, which closes it.
func reach(t testing.TB, srv *testserver.Postgres, prefix string) *postgres.Store {
	t.Helper()
	cfg, err := postgres.Parse(srv.URL() + "?waiter_lease=5s&timeout=10s&prefix=" +
		url.QueryEscape(prefix))
	if err != nil {
		t.Fatal(err)
	}
	s, err := postgres.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestConformance(t *testing.T) {
	t.Parallel()
	srv := testserver.StartPostgres(t, quickly, "max_connections=300")
	const now = "extract(epoch FROM clock_timestamp())*1000000"
	storetest.Run(t, func(t testing.TB, prefix string) upstream.Store { return reach(t, srv, prefix) },
		storetest.Options{
			Server: &storetest.Server{Pause: srv.Pause, Resume: srv.Resume, Restart: srv.Restart},
			Residue: func(t testing.TB, prefix string) (left []string) {
				// Rows that the purge deletes a day later do not count.
				for _, row := range srv.Query(fmt.Sprintf("SELECT name FROM locksidecar WHERE starts_with(name, '%[2]s') AND "+
					"(ends > %[1]s OR fence > %[1]s + 1000000) UNION ALL SELECT id FROM locksidecar_daemons WHERE entry = ''", now, prefix)) {
					left = append(left, row[0])
				}
				return left
			}})
}

// TestClockOfTheServerJumps runs storetest.Clock.
func TestClockOfTheServerJumps(t *testing.T) {
	t.Parallel()
	srv := testserver.StartPostgresWithClock(t, quickly)
	storetest.Clock(t, func(t testing.TB, prefix string) upstream.Store { return reach(t, srv, prefix) }, storetest.Options{},
		func(d time.Duration) {
			srv.JumpClock(d)
			want := time.Now().Add(d).UnixMilli()
			for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
				var ms int64
				_, _ = fmt.Sscan(strings.TrimSpace(srv.Value("SELECT floor(extract(epoch FROM clock_timestamp())*1000)::bigint")), &ms)
				if diff := ms - want; diff > -5000 && diff < 15000 {
					return
				}
			}
			t.Fatal("the server does not notice its clock")
		})
}
