//go:build !linux

package main

// clockUnsynchronized is known on Linux only.
func clockUnsynchronized() bool { return false }
