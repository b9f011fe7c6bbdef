package mysql

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

func TestPurgeTakesOnlyWhatIsLongUnused(t *testing.T) {
	srv := testserver.StartMariaDB(t, "--innodb-flush-log-at-trx-commit=0")
	cfg, err := Parse(srv.URL())
	if err != nil {
		t.Fatal(err)
	}
	s, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	const now = "TIMESTAMPDIFF(MICROSECOND,'1970-01-01',UTC_TIMESTAMP(6))"
	row := func(name string, age time.Duration, ends, queued string) {
		srv.Exec(fmt.Sprintf("INSERT INTO locks.locksidecar VALUES ('%s',1,'',%s-%d,'%s',%s,%s,'','')", name, now, age.Microseconds(), nobody, ends, queued))
	}
	later := now + "+60000000"
	row("young", 23*time.Hour, "0", "0")
	row("held", 48*time.Hour, later, "0")
	row("waited for", 48*time.Hour, "0", later)
	srv.Exec(fmt.Sprintf("INSERT INTO locks.locksidecar SELECT CONCAT('old', LPAD(seq, 4, '0')),1,'',%s-%d,'%s',0,%s-1,'','' FROM locks.seq_1_to_%d",
		now, 25*time.Hour.Microseconds(), nobody, now, 2*purgeSlice+10))
	var total int64
	slices := 0
	for from, first := "", true; first || from != ""; first = false {
		var n int64
		if from, n, err = s.purge(t.Context(), from); err != nil {
			t.Fatal(err)
		}
		if n > purgeSlice {
			t.Errorf("%d rows in one go", n)
		}
		total += n
		slices++
	}
	if total != 2*purgeSlice+10 || slices != 3 {
		t.Errorf("%d rows are purged in %d slices", total, slices)
	}
	if left := srv.Value("SELECT GROUP_CONCAT(name ORDER BY name) FROM locks.locksidecar"); left != "held,waited for,young" {
		t.Errorf("what is left is %s", left)
	}
	res := make([]upstream.Result, 1)
	_ = s.Apply(t.Context(), []upstream.Op{{Kind: cache.OpTry, Key: "old0001", Token: 1, TTL: time.Minute}}, res)
	if res[0].Status != cache.Granted || time.Since(time.UnixMicro(int64(res[0].Base))) > time.Hour {
		t.Errorf("a purged lock is %+v", res[0])
	}
}

func TestTurnsEndWithTheirContext(t *testing.T) {
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for turn := range 40 {
		if err := pause(over, turn); !errors.Is(err, errTurns) && (turn > 0 || !errors.Is(err, context.Canceled)) {
			t.Errorf("turn %d: %v", turn, err)
		}
		if turn < 5 {
			if err := pause(t.Context(), turn); err != nil {
				t.Errorf("turn %d: %v", turn, err)
			}
		}
	}
}
