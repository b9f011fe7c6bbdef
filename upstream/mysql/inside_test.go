package mysql

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/driverkit"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// openInside opens a store and closes it at the end of the test.
func openInside(t *testing.T, url string) *Store {
	t.Helper()
	cfg, err := Parse(url)
	if err != nil {
		t.Fatal(err)
	}
	s, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestPurgeTakesOnlyWhatIsLongUnused(t *testing.T) {
	t.Parallel()
	srv := testserver.StartMariaDB(t, "--innodb-flush-log-at-trx-commit=0")
	s := openInside(t, srv.URL())
	const now = "TIMESTAMPDIFF(MICROSECOND,'1970-01-01',UTC_TIMESTAMP(6))"
	row := func(name string, age time.Duration, ends, queued string) {
		srv.Exec(fmt.Sprintf("INSERT INTO locks.locksidecar VALUES ('%s',1,'',%s-%d,'%s',%s,%s,'','')",
			name, now, age.Microseconds(), nobody, ends, queued))
	}
	later := now + "+60000000"
	row("young", 23*time.Hour, "0", "0")
	row("held", 48*time.Hour, later, "0")
	row("waited for", 48*time.Hour, "0", later)
	srv.Exec(fmt.Sprintf("INSERT INTO locks.locksidecar SELECT CONCAT('old', LPAD(seq, 4, '0')),1,'',%s-%d,'%s',0,%s-1,'','' FROM %s",
		now, 25*time.Hour.Microseconds(), nobody, now, numbers(2*driverkit.PurgeSlice+10)))
	var total int64
	slices := 0
	for from, first := "", true; first || from != ""; first = false {
		v, err := s.purge(t.Context(), from)
		if err != nil {
			t.Fatal(err)
		}
		if v.Deleted > driverkit.PurgeSlice || v.Read > driverkit.PurgeSlice {
			t.Errorf("%d of %d rows in one go", v.Deleted, v.Read)
		}
		total, from = total+v.Deleted, v.Next
		slices++
	}
	if total != 2*driverkit.PurgeSlice+10 || slices != 3 {
		t.Errorf("%d rows are purged in %d slices", total, slices)
	}
	if left := srv.Value("SELECT GROUP_CONCAT(name ORDER BY name) FROM locks.locksidecar"); left != "held,waited for,young" {
		t.Errorf("what is left is %s", left)
	}
	res := make([]upstream.Result, 1)
	_ = s.Apply(t.Context(), []upstream.Op{{Kind: cache.OpTry, Key: "old0001", Token: 1,
		TTL: time.Minute}}, res)
	if res[0].Status != cache.Granted || time.Since(time.UnixMicro(int64(res[0].Base))) > time.Hour {
		t.Errorf("a purged lock is %+v", res[0])
	}
}

func TestTurnsEndWithTheirContext(t *testing.T) {
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for turn := range 40 {
		if err := pause(over, turn); !errors.Is(err, errOutOfTime) &&
			(turn > 0 || !errors.Is(err, context.Canceled)) {
			t.Errorf("turn %d: %v", turn, err)
		}
		if turn < 5 {
			if err := pause(t.Context(), turn); err != nil {
				t.Errorf("turn %d: %v", turn, err)
			}
		}
	}
}

// A walk that finds mostly long unused rows pauses no longer than its slices take. So deletion
// keeps up with any rate of new keys.
func TestPurgeKeepsUpWithManyNewKeys(t *testing.T) {
	t.Parallel()
	srv := testserver.StartMariaDB(t, "--innodb-flush-log-at-trx-commit=0")
	s := openInside(t, srv.URL()+"?timeout=20s")
	const perRound, rounds = 10_000, 4
	var took, paused time.Duration
	for round := range rounds {
		for _, insert := range []string{
			"INSERT INTO locks.locksidecar SELECT CONCAT('%d-',LPAD(seq,5,'0')),1,'',1,'" + nobody +
				"',0,0,'','' FROM %s",
			"INSERT INTO locks.locksidecar_permits SELECT CONCAT('%d-',LPAD(seq,5,'0')),'~',-1,0,0,0,0,0,0 FROM %s",
		} {
			srv.Exec(fmt.Sprintf(insert, round, numbers(perRound)))
		}
		for _, walk := range []func(context.Context, string) (driverkit.Purged, error){s.purge,
			s.purgePermits} {
			for from := ""; ; {
				sent := time.Now()
				v, err := walk(t.Context(), from)
				if err != nil {
					t.Fatal(err)
				}
				v.Took = time.Since(sent)
				if from = v.Next; from == "" {
					break
				}
				took, paused = took+v.Took, paused+v.Pause(0)
			}
		}
		if n := srv.Value("SELECT (SELECT COUNT(*) FROM locks.locksidecar)+(SELECT COUNT(*) FROM locks.locksidecar_permits)"); n != "0" {
			t.Errorf("round %d: %s rows are left", round, n)
		}
	}
	if paused > took {
		t.Errorf("the walks took %v and paused for %v", took, paused)
	}
}

// A server's clock that is days ahead for a while deletes no rows, because their fence bases are
// larger than the true time.
func TestPurgeDistrustsAClockThatIsAhead(t *testing.T) {
	t.Parallel()
	srv := testserver.StartMariaDBWithClock(t, "--innodb-flush-log-at-trx-commit=0")
	s := openInside(t, srv.URL())
	ops := []upstream.Op{{Kind: cache.OpTry, Key: "k", Token: 1, TTL: time.Minute},
		{Kind: cache.OpTry, Mode: cache.Permit, Limit: 1, Key: "k", Token: 2, TTL: time.Minute}}
	res := make([]upstream.Result, len(ops))
	for _, kind := range []cache.OpKind{cache.OpTry, cache.OpRelease} {
		for i := range ops {
			ops[i].Kind = kind
		}
		if err := s.Apply(t.Context(), ops, res); err != nil {
			t.Fatal(err)
		}
	}
	srv.JumpClock(72 * time.Hour)
	for _, walk := range []func(context.Context, string) (driverkit.Purged, error){s.purge,
		s.purgePermits} {
		if v, err := walk(t.Context(), ""); err != nil || v.Read == 0 || v.Deleted != 0 {
			t.Errorf("%d of %d rows are deleted (%v)", v.Deleted, v.Read, err)
		}
	}
}
