// Package embedded is the store inside the daemon, for one host. It needs no installation and no
// network.
//
// Its leases depend on one session. The daemon states to its clients that their locks are valid
// until the session's deadline W. A program may rely on that even after the daemon was killed. So W
// is in a small state file before it is published. A Store that finds a W of the same boot grants
// nothing until W has passed. While there are leases, the session extends W every third of its TTL.
// When there are none, it removes W from the file and stops its timer. A Close without leases
// removes W too.
//
// A lease can be in the file, too, with its end. Then it outlasts the daemon: see keep.go.
//
// Fence bases are max(previous + 1, floor + 1, wall clock in µs). They stay below a limit in the
// same file, which is ahead of them by the session's TTL. After a restart they begin at that limit.
// So they rise even if the wall clock was set back. When the first one is granted after a crash, W
// has passed, and so has the limit: the bases are not ahead of the clock.
//
// Only one daemon at a time may use a state file. The daemon's lock file ensures this.
//
// One goroutine extends the session. Open starts it and Close ends it. The lock order is
// session.io, then a shard's mu. session.io serialises the changes of W and the limit, and is held
// across the file's fsync. A shard's mu is never held across I/O. ApplyInline takes only a shard's
// mu.
package embedded
