package load

import (
	"strconv"
	"time"
)

// RenewArgs says which locks of a Redis are renewed over and over, each in its turn.
type RenewArgs struct {
	Addr  string
	Keys  int
	Batch int // locks in one pipeline
	TTL   time.Duration
	Take  bool // first of all, every one: their holder is the same from worker to worker
}

// RenewKey appends the key of lock i: 24 bytes up to a million, as the keys of
// people are.
func RenewKey(b []byte, i int) []byte {
	b = append(b, "bench:million:key:"...)
	for p := 100_000; p > i && p > 1; p /= 10 {
		b = append(b, '0')
	}
	return strconv.AppendInt(b, int64(i), 10)
}
