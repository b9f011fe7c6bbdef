package mysql

import (
	"fmt"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/driverkit"
	"github.com/locksidecar/locksidecar/upstream/storetest"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

func TestPurgeClearsSemaphores(t *testing.T) {
	t.Parallel()
	srv := testserver.StartMariaDB(t, "--innodb-flush-log-at-trx-commit=0")
	for _, set := range [][]func(*Config){nil, {WithoutReturning}} {
		purgesSemaphores(t, srv, set...)
	}
}

func purgesSemaphores(t *testing.T, srv *testserver.MariaDB, set ...func(*Config)) {
	cfg, err := Parse(srv.URL())
	if err != nil {
		t.Fatal(err)
	}
	s, err := Open(t.Context(), storetest.With(cfg, set))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	srv.Exec("TRUNCATE locks.locksidecar_permits")
	const now = "TIMESTAMPDIFF(MICROSECOND,'1970-01-01',UTC_TIMESTAMP(6))"
	row := func(name, token string, place int, ends string, age time.Duration, held, waits int) {
		srv.Exec(fmt.Sprintf("INSERT INTO locks.locksidecar_permits VALUES ('%s','%s',%d,%s,%s-%d,3,%d,%d,0)", name, token, place, ends, now, age.Microseconds(), held, waits))
	}
	later, past := now+"+60000000", now+"-1"
	row("free", "~", -1, never, 23*time.Hour, 0, 0)
	row("held", "~", -1, past, 48*time.Hour, 3, 1)
	row("held", "a", 0, later, 48*time.Hour, 0, 0)
	row("held", "b", 0, past, 48*time.Hour, 0, 0)
	row("held", "c", 0, past, 48*time.Hour, 0, 0)
	row("held", "d", 1, past, 0, 0, 0)
	row("orphans", "~", -1, past, 48*time.Hour, 1, 0)
	row("orphans", "a", 0, past, 48*time.Hour, 0, 0)
	row("young orphans", "~", -1, past, time.Hour, 1, 0)
	row("young orphans", "a", 0, past, time.Hour, 0, 0)
	srv.Exec(fmt.Sprintf("INSERT INTO locks.locksidecar_permits SELECT CONCAT('old', LPAD(seq, 4, '0')),'~',-1,0,0,0,0,0,0 FROM %s", numbers(2*driverkit.PurgeSlice+10)))
	slices := 0
	for from, first := "", true; first || from != ""; first = false {
		v, err := s.purgePermits(t.Context(), from)
		if err != nil {
			t.Fatal(err)
		}
		from = v.Next
		slices++
	}
	left := srv.Value("SELECT GROUP_CONCAT(CONCAT(name,token,' ',held,waits) ORDER BY name,token) FROM locks.locksidecar_permits")
	if want := "free~ 00,helda 00,held~ 10,orphans~ 00,young orphans~ 00"; left != want ||
		slices != 3 {
		t.Errorf("what is left after %d slices is %s", slices, left)
	}
	if v, err := s.purgePermits(t.Context(), ""); v.Deleted != 1 || err != nil { // now they are unused
		t.Errorf("%d more are purged (%v)", v.Deleted, err)
	}
	res := make([]upstream.Result, 1)
	_ = s.Apply(t.Context(), []upstream.Op{{Kind: cache.OpTry, Mode: cache.Permit, Limit: 1,
		Key: "orphans", Token: 1, TTL: time.Minute}}, res)
	if res[0].Status != cache.Granted || time.Since(time.UnixMicro(int64(res[0].Base))) > time.Hour {
		t.Errorf("a permit of a purged semaphore is %+v", res[0])
	}
}
