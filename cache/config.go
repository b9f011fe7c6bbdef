package cache

import (
	"math"
	"time"
)

// Config configures a table. Durations are on the boot clock.
type Config struct {
	Shard  int // this table's number, from 0 to Shards-1
	Shards int

	Poll time.Duration // time between two OpJoin while queued at the store
	// RetryMin is the first and RetryMax the longest pause after a failed op.
	RetryMin time.Duration
	RetryMax time.Duration
	Grace    time.Duration // how long waiters wait while the store fails

	MaxHolds   int64 // maximum of a session, over all shards
	MaxWaiters int64

	Habits int // maximum number of keys with a remembered history, and so of lingering leases

	Seed uint64 // for jitter
}

// DefaultConfig returns the configuration that a daemon starts with.
func DefaultConfig() Config {
	return Config{
		Shards:   1,
		Poll:     500 * time.Millisecond,
		RetryMin: 50 * time.Millisecond, RetryMax: time.Second, Grace: 5 * time.Second,
		MaxHolds: math.MaxInt64, MaxWaiters: math.MaxInt64, Habits: 1024,
	}
}

// The fences within one base, and where a new base is fetched. Permits have the upper half, so
// that a lock and a permit of one key never have the same fence.
const (
	handoffBits    = 10
	permitHandoffs = 1 << (handoffBits - 1)
	maxHandoff     = permitHandoffs - 1
	handoffRebase  = permitHandoffs * 3 / 4
)

// LeaseDeadline returns when this host considers a lease ended that was acquired or renewed with
// ttl by a request sent at sent. It allows for a drift of 1 % and 2 ms between this host's clock
// and the store's, as the description of Redlock does.
func LeaseDeadline(sent, ttl int64) int64 {
	return sent + ttl - ttl/100 - int64(2*time.Millisecond)
}
