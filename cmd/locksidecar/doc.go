// Command locksidecar is the daemon, which serves distributed locks to the
// programs of one host over a Unix socket, and the command line to use and watch
// it.
//
// Main is the whole program as a value, so that tests can run it. Each command
// is one file: serve, lock, status, locks, waiters, sessions, top, unlock, health,
// config, conformance, version. Below are internal/config (what the daemon can be
// told), internal/run (a child process and its terminal), internal/terminal (a
// program that fills the screen), internal/top (what top shows there) and
// internal/tuning (GOMAXPROCS and the garbage collector of the daemon).
//
// Goroutines: serve has the daemon's and one that takes signals; lock has the
// client's, one that waits for the lock and one that watches it; top has the
// screen's and one for a request that is under way. Each command waits for its own.
// There are no locks.
package main
