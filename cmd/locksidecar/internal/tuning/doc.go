// Package tuning sets GOMAXPROCS and the garbage collector of a daemon's process to what its load
// needs.
package tuning
