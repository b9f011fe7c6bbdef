package mysql_test

import (
	"database/sql"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// BenchmarkPairs takes and releases uncontended locks for 64 callers. In pool, each caller inserts
// and deletes a row on a connection from a pool of 16. In apply, there are two batches in flight,
// each with a take for half of the callers and a release for the rest.
//
//	go test -run - -bench Pairs ./upstream/mysql
func BenchmarkPairs(b *testing.B) {
	for _, flush := range []string{"1", "2"} {
		srv := testserver.StartMariaDB(b, "--innodb-flush-log-at-trx-commit="+flush)
		for _, how := range []string{"prepared", "interpolated"} {
			b.Run("flush="+flush+"/pool/"+how, func(b *testing.B) { poolPairs(b, srv, how) })
		}
		for _, n := range []int{16, 32, 64, 128} {
			b.Run(fmt.Sprintf("flush=%s/apply/n=%d", flush, n), func(b *testing.B) { applyPairs(b, srv, n) })
		}
	}
}

func poolPairs(b *testing.B, srv *testserver.MariaDB, how string) {
	dsn := "root@tcp(" + srv.Addr() + ")/locks"
	if how == "interpolated" {
		dsn += "?interpolateParams=true"
	}
	db, err := sql.Open("mysql", dsn)
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close()
	db.SetMaxOpenConns(16)
	db.SetMaxIdleConns(16)
	if _, err := db.Exec("CREATE OR REPLACE TABLE pairs (name VARBINARY(512) NOT NULL PRIMARY KEY, owner VARBINARY(64) NOT NULL, ends DATETIME(6) NOT NULL) ENGINE=InnoDB"); err != nil {
		b.Fatal(err)
	}
	insert := func(name string) error {
		_, err := db.Exec("INSERT INTO pairs VALUES (?, ?, UTC_TIMESTAMP(6) + INTERVAL 30 SECOND)", name,
			"owner of "+name)
		return err
	}
	remove := func(name string) error {
		_, err := db.Exec("DELETE FROM pairs WHERE name = ? AND owner = ?", name, "owner of "+name)
		return err
	}
	if how == "prepared" {
		ins, err1 := db.Prepare("INSERT INTO pairs VALUES (?, ?, UTC_TIMESTAMP(6) + INTERVAL 30 SECOND)")
		del, err2 := db.Prepare("DELETE FROM pairs WHERE name = ? AND owner = ?")
		if err1 != nil || err2 != nil {
			b.Fatal(err1, err2)
		}
		insert = func(name string) error { _, err := ins.Exec(name, "owner of "+name); return err }
		remove = func(name string) error { _, err := del.Exec(name, "owner of "+name); return err }
	}
	var wg sync.WaitGroup
	var n atomic.Int64
	stop := measured(b, srv)
	for range 64 {
		wg.Go(func() {
			for {
				i := n.Add(1)
				if i > int64(b.N) {
					return
				}
				name := benchKey(uint64(i))
				if err := insert(name); err != nil {
					b.Error(err)
					return
				}
				if err := remove(name); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	stop()
}

// measured starts a measurement and returns the function that ends it. It reports pairs per second,
// and the CPU time of a pair in µs at the server and in this process.
func measured(b *testing.B, srv *testserver.MariaDB) func() {
	theirs, ours := cpuTime(b, srv.PID()), cpuTime(b, os.Getpid())
	b.ResetTimer()
	return func() {
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "pairs/s")
		b.ReportMetric(0, "ns/op")
		b.ReportMetric((cpuTime(b, srv.PID())-theirs)*1e6/float64(b.N), "server-µs/pair")
		b.ReportMetric((cpuTime(b, os.Getpid())-ours)*1e6/float64(b.N), "client-µs/pair")
	}
}

// cpuTime returns a process's CPU time in seconds, or 0 without /proc.
func cpuTime(b *testing.B, pid int) (sec float64) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	for _, f := range fields[11:13] {
		n, err := strconv.ParseFloat(f, 64)
		if err != nil {
			b.Fatal(err)
		}
		sec += n / 100
	}
	return sec
}

func benchKey(i uint64) string {
	return "bench:" + strconv.FormatUint(i%(1<<14)*0x9e3779b97f4a7c15, 16)
}

func applyPairs(b *testing.B, srv *testserver.MariaDB, n int) {
	s := open(b, srv.URL()+"?timeout=10s&prefix="+url.QueryEscape(b.Name()))
	var token, pairs atomic.Uint64
	var wg sync.WaitGroup
	stop := measured(b, srv)
	for range 2 {
		wg.Go(func() {
			ops, res := make([]cache.Op, n), make([]cache.Result, n)
			half := n / 2
			first := true
			for last := false; !last; first = false {
				last = pairs.Add(uint64(half)) >= uint64(b.N+2*half)
				for i := range half {
					t := token.Add(1)
					ops[half+i] = ops[i]
					ops[half+i].Kind = cache.OpRelease
					ops[i] = cache.Op{Kind: cache.OpTry, Key: benchKey(t), Token: t,
						TTL: 30 * time.Second, Floor: 12345}
				}
				from, to := 0, n
				if first {
					to = half
				} else if last {
					from = half
				}
				if err := s.Apply(b.Context(), ops[from:to], res[from:to]); err != nil {
					b.Error(err)
					return
				}
				for i := from; i < to; i++ {
					if want := []cache.Status{cache.Granted, cache.Done}[i/half]; res[i].Status != want {
						b.Errorf("%v", res[i])
						return
					}
				}
			}
		})
	}
	wg.Wait()
	stop()
}
