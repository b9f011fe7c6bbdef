package run

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Modes are a terminal's, to go back to.
type Modes struct {
	f   *os.File
	was unix.Termios
}

// Raw has the terminal f give each key at once and show none. The keys for signals still send
// them.
func Raw(f *os.File) (*Modes, error) {
	was, err := unix.IoctlGetTermios(int(f.Fd()), getModes)
	if err != nil {
		return nil, fmt.Errorf("read modes: %w", err)
	}
	raw := *was
	raw.Iflag &^= unix.IXON | unix.INLCR | unix.ISTRIP
	raw.Lflag &^= unix.ICANON | unix.ECHO | unix.IEXTEN
	raw.Cc[unix.VMIN], raw.Cc[unix.VTIME] = 1, 0
	if err := unix.IoctlSetTermios(int(f.Fd()), setModes, &raw); err != nil {
		return nil, fmt.Errorf("set modes: %w", err)
	}
	return &Modes{f, *was}, nil
}

// Restore goes back to them.
func (m *Modes) Restore() { _ = unix.IoctlSetTermios(int(m.f.Fd()), setModes, &m.was) }

// Stop stops our whole process group with sig, as the terminal's key does, and returns when we run
// again: at once, or nearly, if no shell can continue us.
func Stop(sig syscall.Signal) { suspend(sig) }
