// Package top is what locksidecar top shows: Top takes in views of the daemon and keys, and
// makes of them the lines of a screen of any size, or a plain round for a pipe. It does no I/O,
// has no clock and no goroutine: it can be tested as a value. Package terminal does the rest.
//
// Whatever comes from clients, keys and names, goes through terminal.Clean on its way to a line.
package top
