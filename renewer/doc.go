// Package renewer decides when leases are renewed: one heap a store and one
// goroutine, whatever their number.
//
// Schedule is a heap, and the whole decision: it can be asked what is due at a
// time without the goroutine. Timer is the goroutine: it sleeps on the boot
// clock until the next due time and calls what it was made with. Lock order: a
// shard's mutex, then the Schedule's.
package renewer
