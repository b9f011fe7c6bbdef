package testserver

import "syscall"

// dieWithParent ends the server when the test's process dies in any way.
func dieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
