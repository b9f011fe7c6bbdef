// Package chaos does to locksidecar what Jepsen does to others: three daemons and eight
// clients in Go, Python and Java on one real store, faults while they work, and a
// history of all that clients were told, which is checked afterwards.
//
// A cell is one store, one fault, whom it is for, and how long it lasts in TTLs. Run
// runs one from a seed: the load, the times and the victims come from it; how threads
// and processes take turns does not.
//
// A program that uses it calls Main first: started again as a worker in Go, that is
// where it stays. Every process that a cell starts ends with it, and goroutines belong
// to the cell, the register or the process that they read from, and end with them.
package chaos
