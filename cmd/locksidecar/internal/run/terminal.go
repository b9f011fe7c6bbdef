package run

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// terminal is the controlling terminal of this process.
type terminal struct {
	f     *os.File
	fd    int
	own   int           // the process group of this process
	modes *unix.Termios // as they were when the terminal was given away; nil if it was not
}

// openTerminal returns nil if there is no controlling terminal.
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

// foreground returns the process group that has the terminal, or -1 if that is unknown.
func (t *terminal) foreground() int {
	pgrp, err := unix.IoctlGetInt(t.fd, unix.TIOCGPGRP)
	if err != nil {
		return -1
	}
	return pgrp
}

// set gives the terminal to a group. SIGTTOU must be ignored, or this process must be in the
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

// IsTerminal reports whether f is a terminal.
func IsTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), getModes)
	return err == nil
}
