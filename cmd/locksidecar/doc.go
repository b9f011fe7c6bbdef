// Command locksidecar is the daemon, which serves distributed locks to the programs of one host
// over a Unix socket. It is also the command line to use and watch the daemon.
//
// Main is the whole program as a value, so that tests can run it. Each command has a file of its
// own: serve, lock, status, locks, waiters, sessions, top, unlock, who, health, doctor, config,
// conformance, version. There are these packages below:
//
//   - internal/config: the daemon's configuration
//   - internal/run: a child process and its terminal
//   - internal/terminal: a program that fills the screen
//   - internal/top: the output of top
//   - internal/tuning: GOMAXPROCS and the garbage collector of the daemon
//
// Goroutines: serve has the daemon's goroutines and one that receives signals. lock has the
// client's, one that waits for the lock and one that watches it. top has the screen's, and one for
// each request. Each command waits for its own goroutines. Lock order:
// openStores.mu, then places.mu.
package main
