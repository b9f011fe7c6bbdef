//go:build !race

package redlock_test

// seeds is the number of seeds that the simulation runs.
const seeds = 300
