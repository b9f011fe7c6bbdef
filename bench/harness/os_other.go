//go:build !linux

package harness

import (
	"syscall"
	"time"
)

// CPU returns 0, because it cannot measure here.
func CPU(pid int) time.Duration { return 0 }

func tied() *syscall.SysProcAttr { return nil }
