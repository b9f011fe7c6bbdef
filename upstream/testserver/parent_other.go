//go:build !linux

package testserver

import "syscall"

// dieWithParent returns nil, because there is no parent-death signal here. The test's clean-up ends
// the server, unless the test's process is killed.
func dieWithParent() *syscall.SysProcAttr { return nil }
