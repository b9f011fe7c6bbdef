//go:build !linux

package testserver

import "syscall"

// dieWithParent: there is no parent-death signal here; the test's clean-up ends
// the server, unless the test's process is killed.
func dieWithParent() *syscall.SysProcAttr { return nil }
