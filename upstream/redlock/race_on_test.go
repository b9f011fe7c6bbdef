//go:build race

package redlock_test

const seeds = 40
