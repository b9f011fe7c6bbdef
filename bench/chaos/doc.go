// Package chaos tests locksidecar in the way of Jepsen. Three daemons and eight clients in Go,
// Python and Java work on one real store while faults happen. The clients record all that they are
// told, and the package checks this history afterwards.
//
// A cell is one store, one fault, the target of the fault, and how many TTLs the fault lasts. Run
// runs a cell from a seed. The load, the times and the victims follow from the seed; the scheduling
// of threads and processes does not.
//
// A program that uses the package calls Main first. If the program was started as a worker in Go,
// Main does not return. Every process that a cell starts ends with the cell. Each goroutine belongs
// to the cell, the register, or the process that it reads from, and ends with it.
package chaos
