// Package harness is what every benchmark needs: worker processes that run a load
// for a window of time, histograms, the CPU time and memory of processes, a
// private Redis and its counters, memory that workers share, and reports.
//
// A program that uses it calls Main first: started again as a worker or as a bare
// server, that is where it stays. Loads always run in processes of their
// own, so that no server shares a heap or a scheduler with its clients.
//
// Goroutines belong to the call that starts them: a worker's callers end before
// it reports, a Process is waited for by Stop.
package harness
