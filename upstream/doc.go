// Package upstream is the contract between the daemon and a store, and gathers the ops into
// batches. Each driver is a sub-package. No driver imports another.
//
// A Lane gathers the ops that arrive while earlier batches are in flight. This natural batching
// needs no timer and causes no delay in an idle lane. A Pump owns the goroutines that send batches
// to a Store. Its Close takes no further batch and waits for those goroutines.
//
// An Upkeep does the work for a store that no request causes. It passes on hints and news of the
// store session, sweeps the store, and keeps the daemon's entry there. It owns its goroutines, too.
//
// Pump.notifying and the gate of an Upkeep are held while the engine is called. Pump.mu is taken
// before the mutex of a Lane.
package upstream
