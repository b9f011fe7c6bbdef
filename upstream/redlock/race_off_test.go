//go:build !race

package redlock_test

// seeds is how many the simulation runs through.
const seeds = 300
