//go:build !linux

package faultproxy

import "time"

// nap is finer than Go's timers only on Linux.
type nap struct{}

func newNap() nap { return nap{} }

func (nap) sleep(d time.Duration) { time.Sleep(d) }

func (nap) close() {}
