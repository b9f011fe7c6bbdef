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
	raw     atomic.Pointer[run.Modes] // not nil while the screen is ours
	shown   []string                  // the lines that are there
	typed   chan []byte
	done    chan struct{}
	wg      sync.WaitGroup
}

// Attached says whether keys can reach us: whether we have a controlling terminal.
func Attached() bool {
	in, err := openKeys()
	if err == nil {
		in.Close()
	}
	return err == nil
}

// openKeys opens it anew: nobody else's descriptor is made to wait differently.
func openKeys() (*os.File, error) { return os.OpenFile("/dev/tty", os.O_RDWR|syscall.O_NOCTTY, 0) }

// Open takes the terminal that out is. Signals are not looked at: the caller has to Close the
// screen when it is ended by one.
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

// give makes the terminal what it was. It does nothing the second time.
func (s *Screen) give() {
	if modes := s.raw.Swap(nil); modes != nil {
		_, _ = s.out.WriteString(leave)
		modes.Restore()
	}
}

// Close gives the terminal back.
func (s *Screen) Close() {
	s.give()
	close(s.done)
	// Off Linux a read of /dev/tty ends with the next key only: there it is left to the end of
	// the process.
	if s.in.SetReadDeadline(time.Unix(1, 0)) == nil {
		s.wg.Wait()
	}
	s.in.Close()
}

// Rescue is to be deferred by every goroutine of a program that has a Screen: one that panics
// leaves the terminal as it was, and its last words on it.
func (s *Screen) Rescue() {
	if r := recover(); r != nil {
		s.give()
		panic(r)
	}
}

// Stop stops the whole job as the terminal's key for it does, and takes the terminal again when
// somebody has continued it.
func (s *Screen) Stop() error {
	s.give()
	run.Stop(syscall.SIGTSTP)
	return s.take()
}

// Typed is what comes from the keyboard; it is closed when nothing can come any more.
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

// Size is how many columns and lines there are: 80 and 24 if the terminal does not say.
func (s *Screen) Size() (w, h int) {
	ws, err := unix.IoctlGetWinsize(int(s.out.Fd()), unix.TIOCGWINSZ)
	if err != nil || ws.Col == 0 || ws.Row == 0 {
		return 80, 24
	}
	return int(ws.Col), int(ws.Row)
}

// Clear has the next Draw write every line: after a change of size nobody knows what is there.
func (s *Screen) Clear() { s.shown = nil }

// Draw shows lines from the top on, none of them wider than the screen. It writes only those that
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
		// Erased first: behind a full line the cursor stands on its last character.
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
