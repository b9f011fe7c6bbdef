package mysql_test

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/mysql"
	"github.com/locksidecar/locksidecar/upstream/storetest"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// open opens a store at url and closes it with the test.
func open(t testing.TB, url string, set ...func(*mysql.Config)) *mysql.Store {
	t.Helper()
	cfg, err := mysql.Parse(url)
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Timeout == mysql.DefaultTimeout { // a busy machine stalls for longer
		cfg.Timeout = 10 * time.Second
	}
	s := storetest.Opened(t, func() (*mysql.Store, error) {
		return mysql.Open(t.Context(), storetest.With(cfg, set))
	})
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// reach opens a store for the suite, which closes it.
func reach(t testing.TB, srv *testserver.MariaDB, prefix string,
	set ...func(*mysql.Config)) *mysql.Store {
	t.Helper()
	cfg, err := mysql.Parse(srv.URL() + "?waiter_lease=5s&poll=20ms&timeout=10s&prefix=" +
		url.QueryEscape(prefix))
	if err != nil {
		t.Fatal(err)
	}
	s, err := mysql.Open(t.Context(), storetest.With(cfg, set))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// quickly is for servers whose crashes a test does not examine.
const quickly = "--innodb-flush-log-at-trx-commit=0"

func TestConformance(t *testing.T) { conform(t) }

// TestConformanceWithoutReturning uses the statements for MySQL.
func TestConformanceWithoutReturning(t *testing.T) { conform(t, mysql.WithoutReturning) }

func conform(t *testing.T, set ...func(*mysql.Config)) {
	t.Parallel()
	srv := testserver.StartMariaDB(t, quickly, "--max-connections=300")
	storetest.Run(t, func(t testing.TB, prefix string) upstream.Store { return reach(t, srv, prefix, set...) }, storetest.Options{PolledHints: true, HeldUnknown: []cache.Mode{cache.Shared}, Server: &storetest.Server{Pause: srv.Pause, Resume: srv.Resume, Restart: srv.Restart}, Residue: func(t testing.TB, prefix string) []string {
		// Rows that the purge deletes a day later do not count.
		const now = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
		like := "name LIKE '" + strings.ReplaceAll(prefix, "_", `\_`) + "%' AND"
		rows, err := srv.Admin().QueryContext(t.Context(),
			fmt.Sprintf("SELECT name FROM locks.locksidecar WHERE %[2]s "+
				"(owner NOT LIKE '---%%' OR readers <> '' OR ends > %[1]s OR queued > %[1]s OR fence > %[1]s + 1000000) UNION ALL "+
				"SELECT CONCAT(name, ' ', token) FROM locks.locksidecar_permits WHERE %[2]s (token <> '~' OR held <> 0 OR waits <> 0 OR fence > %[1]s + 1000000)", now, like))
		if err != nil {
			t.Fatal(err)
		}
		defer rows.Close()
		var left []string
		for rows.Next() {
			var name string
			if err := rows.Scan(&name); err != nil {
				t.Fatal(err)
			}
			left = append(left, name)
		}
		return left
	}})
}
