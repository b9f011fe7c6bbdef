// Package takeover has what the two processes of a takeover exchange: the messages and their
// codec, the descriptors, the snapshot that goes with them, and the parked state that a service
// manager keeps between two processes. Give is the side of the process that serves, and State that
// of its successor. Package daemon freezes, makes and restores what is exchanged.
//
// In a takeover another process replaces the one that serves, and clients notice
// nothing. The other process asks for it on the admin socket, and opens the stores while this one
// serves. Then this process freezes and passes on its sockets and its snapshot. When the other
// process has read everything, this one commits with one byte. If anything fails before it has
// written that byte, this process continues; afterwards it does nothing more. The other process
// serves only after it has read that byte. So at most one process serves at any time, even if
// either is killed.
//
// The messages, in their order:
//
//	successor   Request
//	serving     Offer, with a descriptor for each locked store
//	successor   Prepared
//	serving     Contents
//	serving     empty messages with the descriptors; the last is the memory file with the snapshot
//	successor   Ready
//	serving     one byte: the commit
//
// Takeovers need Linux. On other systems Claim and FindParked refuse.
//
// The package starts no goroutine and has no lock.
package takeover
