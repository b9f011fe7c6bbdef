// Package harness has what every benchmark needs: worker processes that run a load for a window of
// time, histograms, and the CPU time and memory of processes. It also has a private Redis with its
// counters, memory that workers share, and reports.
//
// A program that uses the package calls Main first. If the program was started as a worker or as a
// bare server, Main does not return. Loads always run in processes of their own, so that no server
// shares a heap or a scheduler with its clients.
//
// Each goroutine belongs to the call that starts it. The callers of a worker end before it reports.
// Stop waits for a Process.
package harness
