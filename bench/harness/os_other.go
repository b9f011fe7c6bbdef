//go:build !linux

package harness

import (
	"syscall"
	"time"
)

// CPU is not measured here.
func CPU(pid int) time.Duration { return 0 }

func tied() *syscall.SysProcAttr { return nil }
