package run

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Modes are the modes of a terminal, which can be restored.
type Modes struct {
	f   *os.File
	was unix.Termios
}

// Raw makes the terminal f pass on each key at once, and show no typed keys. The keys for signals
// still send them.
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

// Restore restores the modes.
func (m *Modes) Restore() { _ = unix.IoctlSetTermios(int(m.f.Fd()), setModes, &m.was) }

// Stop stops the whole process group of this process with sig, as a key of the terminal does. It
// returns when this process runs again: at once, or nearly so, if no shell can continue it.
func Stop(sig syscall.Signal) { suspend(sig) }
