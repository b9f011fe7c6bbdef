// Package embedded is the store inside the daemon, for one host: nothing to
// install, nothing to ask over a network.
//
// Its leases live by one session. The daemon states to its clients that what
// they hold is valid until the session's deadline W, and somebody may rely on
// that even after the daemon was killed. So W stands in a small state file
// before it is published, and a Store that finds a W of the same boot which has
// not passed yet grants nothing until then. W is moved on every third of the
// session's TTL while anything is held; when nothing is, it is taken back, the
// file says so, and no timer runs. A clean Close with nothing held takes it
// back too.
//
// Fence bases are max(previous + 1, floor + 1, wall clock in µs) and stay below
// a limit that stands in the same file, a minute ahead; after a restart they
// begin at that limit. So they rise even when the wall clock was set back.
//
// One daemon at a time may use a state file; the daemon's lock file sees to it.
//
// One goroutine, started by Open and ended by Close, moves the session on.
// Locks, in this order: session.io (held across the file's fsync; serialises
// whatever moves W or the limit), then a shard's mu (never held across I/O).
// ApplyInline takes only the latter.
package embedded
