// Package renewer decides when leases are renewed. It needs one heap for each store and one
// goroutine, whatever the number of leases.
//
// A Schedule is a heap, and makes the whole decision: it returns the leases that are due at a given
// time, and needs no goroutine for that. A Timer owns the goroutine, which sleeps on the boot clock
// until the next due time and then calls a function. Close waits for it.
//
// The mutex of a shard is taken before the mutex of a Schedule.
package renewer
