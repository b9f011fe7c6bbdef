package load

import (
	"strconv"
	"time"
)

// RenewArgs says which locks of a Redis are renewed again and again, in turn.
type RenewArgs struct {
	Addr  string
	Keys  int
	Batch int // locks in one pipeline
	TTL   time.Duration
	Take  bool // acquire every lock first; the holder is the same in all workers
}

// RenewKey appends the key of lock i. Up to a million it has 24 bytes, a typical length.
func RenewKey(b []byte, i int) []byte {
	b = append(b, "bench:million:key:"...)
	for p := 100_000; p > i && p > 1; p /= 10 {
		b = append(b, '0')
	}
	return strconv.AppendInt(b, int64(i), 10)
}
