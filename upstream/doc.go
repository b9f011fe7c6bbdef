// Package upstream is the contract between the daemon and a store, and the
// batching on the way there. One sub-package a driver; none knows another.
//
// A Lane gathers what is asked while earlier batches are on the wire (natural
// batching: no timer, no delay when idle). A Pump owns the goroutines that
// carry batches to a Store; it ends them in Close, the lanes' order being: take
// no more, wait for what is in flight.
package upstream
