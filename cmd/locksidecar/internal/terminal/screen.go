package terminal

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/cmd/locksidecar/internal/run"
)

const (
	enter = "\x1b[?1049h\x1b[?7l\x1b[?25l" // the alternate screen, no wrapping, no cursor
	leave = "\x1b[0m\x1b[?25h\x1b[?7h\x1b[?1049l"
)

// Screen is the terminal while a program fills it.
type Screen struct {
	in, out *os.File
	raw     atomic.Pointer[run.Modes] // not nil while this program has the screen
	shown   []string                  // the lines on the screen
	typed   chan []byte
	done    chan struct{}
	wg      sync.WaitGroup
}

// Attached reports whether the process has a controlling terminal, so that it can read keys.
func Attached() bool {
	in, err := openKeys()
	if err == nil {
		in.Close()
	}
	return err == nil
}

// openKeys opens the terminal again, so that the mode of other processes' descriptors does not
// change.
func openKeys() (*os.File, error) { return os.OpenFile("/dev/tty", os.O_RDWR|syscall.O_NOCTTY, 0) }

// Open takes over the terminal out. It does not handle signals: the caller has to Close the
// screen when a signal ends the program.
func Open(out *os.File) (*Screen, error) {
	in, err := openKeys()
	if err != nil {
		return nil, fmt.Errorf("open terminal: %w", err)
	}
	s := &Screen{in: in, out: out, typed: make(chan []byte), done: make(chan struct{})}
	if err := s.take(); err != nil {
		in.Close()
		return nil, err
	}
	s.wg.Go(s.read)
	return s, nil
}

func (s *Screen) take() error {
	modes, err := run.Raw(s.out)
	if err != nil {
		return fmt.Errorf("change terminal: %w", err)
	}
	s.raw.Store(modes)
	s.shown = nil
	if _, err := s.out.WriteString(enter); err != nil {
		s.give()
		return fmt.Errorf("write to the terminal: %w", err)
	}
	return nil
}

// give restores the terminal. It does nothing the second time.
func (s *Screen) give() {
	if modes := s.raw.Swap(nil); modes != nil {
		_, _ = s.out.WriteString(leave)
		modes.Restore()
	}
}

// Close restores the terminal.
func (s *Screen) Close() {
	s.give()
	close(s.done)
	// On systems other than Linux, a read of /dev/tty ends only with the next key. There the goroutine
	// remains until the process ends.
	if s.in.SetReadDeadline(time.Unix(1, 0)) == nil {
		s.wg.Wait()
	}
	s.in.Close()
}

// Rescue restores the terminal after a panic, so that the message can be read. Every goroutine of a
// program with a Screen has to defer Rescue.
func (s *Screen) Rescue() {
	if r := recover(); r != nil {
		s.give()
		panic(r)
	}
}

// Stop stops the whole job, as Ctrl-Z does, and takes over the terminal again when the job is
// continued.
func (s *Screen) Stop() error {
	s.give()
	run.Stop(syscall.SIGTSTP)
	return s.take()
}

// Typed returns the input from the keyboard. It is closed at the end of the input.
func (s *Screen) Typed() <-chan []byte { return s.typed }

func (s *Screen) read() {
	defer s.Rescue()
	defer close(s.typed)
	for {
		b := make([]byte, 256)
		n, err := s.in.Read(b)
		if err != nil {
			return
		}
		select {
		case s.typed <- b[:n]:
		case <-s.done:
			return
		}
	}
}

// Size returns the number of columns and lines. It returns 80 and 24 if the terminal does not
// report its size.
func (s *Screen) Size() (w, h int) {
	ws, err := unix.IoctlGetWinsize(int(s.out.Fd()), unix.TIOCGWINSZ)
	if err != nil || ws.Col == 0 || ws.Row == 0 {
		return 80, 24
	}
	return int(ws.Col), int(ws.Row)
}

// Clear makes the next Draw write every line. After a change of size the content of the screen is
// unknown.
func (s *Screen) Clear() { s.shown = nil }

// Draw shows lines from the top. None may be wider than the screen. It writes only those that
// have changed.
func (s *Screen) Draw(lines []string) error {
	var b []byte
	if s.shown == nil {
		b = append(b, "\x1b[2J"...)
	}
	for i, l := range lines {
		if i < len(s.shown) && s.shown[i] == l {
			continue
		}
		// The line is erased first, because after a full line the cursor is on its last character.
		b = fmt.Appendf(b, "\x1b[%d;1H\x1b[K%s", i+1, l)
	}
	for i := len(lines); i < len(s.shown); i++ {
		b = fmt.Appendf(b, "\x1b[%d;1H\x1b[K", i+1)
	}
	s.shown = append(make([]string, 0, len(lines)), lines...)
	if _, err := s.out.Write(b); err != nil {
		return fmt.Errorf("write to the terminal: %w", err)
	}
	return nil
}
