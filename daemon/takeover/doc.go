// Package takeover defines the messages, descriptors and snapshots that the two processes of a
// takeover exchange, and the parked state that a service manager keeps between two processes. The
// serving process calls Give, and its successor uses a State. Package daemon freezes the process,
// makes the snapshot and restores it.
//
// In a takeover a successor replaces the serving process, and clients notice only a short pause.
// The successor requests the takeover on the admin socket, and opens the stores while the serving
// process continues. Then the serving process freezes, and passes on its sockets and its snapshot.
// When the successor has read everything, the serving process commits with one byte. If anything
// fails before it has written that byte, it continues to serve; after it has written the byte, it
// only ends. The successor serves only after it has read that byte. So at most one process serves
// at any time, even if either is killed.
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
