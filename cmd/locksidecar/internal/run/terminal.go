package run

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// terminal is our controlling terminal.
type terminal struct {
	f     *os.File
	fd    int
	own   int           // our process group
	modes *unix.Termios // as they were when we gave it away; nil when we did not
}

// openTerminal returns nil when we have none.
func openTerminal() *terminal {
	f, err := os.OpenFile("/dev/tty", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		return nil
	}
	return &terminal{f: f, fd: int(f.Fd()), own: syscall.Getpgrp()}
}

func (t *terminal) close() {
	if t != nil {
		t.f.Close()
	}
}

// foreground returns the process group that has the terminal, -1 when unknown.
func (t *terminal) foreground() int {
	pgrp, err := unix.IoctlGetInt(t.fd, unix.TIOCGPGRP)
	if err != nil {
		return -1
	}
	return pgrp
}

// set gives the terminal to a group. It needs SIGTTOU ignored, or us in the
// foreground.
func (t *terminal) set(pgrp int) error {
	return unix.IoctlSetPointerInt(t.fd, unix.TIOCSPGRP, pgrp)
}

func (t *terminal) save() {
	if m, err := unix.IoctlGetTermios(t.fd, getModes); err == nil {
		t.modes = m
	}
}

func (t *terminal) restore() {
	if t.modes != nil {
		unix.IoctlSetTermios(t.fd, setModes, t.modes)
	}
}

// IsTerminal says whether f is a terminal.
func IsTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), getModes)
	return err == nil
}
