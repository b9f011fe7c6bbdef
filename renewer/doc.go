// Package renewer decides when leases are renewed. It needs one heap for each store and one
// goroutine, whatever the number of leases.
//
// A Schedule is a heap, and makes the whole decision: it tells which leases are due at a time, also
// without the goroutine. A Timer owns the goroutine, which sleeps on the boot clock until the next
// due time and then calls a function. Close waits for it.
//
// The mutex of a shard is taken before that of a Schedule.
package renewer
