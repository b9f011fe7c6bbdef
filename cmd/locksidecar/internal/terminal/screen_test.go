package terminal_test

import (
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"
	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/cmd/locksidecar/internal/terminal"
	"github.com/locksidecar/locksidecar/cmd/locksidecar/internal/terminal/vt"
)

// asProgram is the variable that makes this test binary a program with a screen.
const asProgram = "TERMINAL_TEST_PROGRAM"

func TestMain(m *testing.M) {
	if what := os.Getenv(asProgram); what != "" {
		program(what)
		return
	}
	goleak.VerifyTestMain(m)
}

func program(what string) {
	s, err := terminal.Open(os.Stdout)
	if err != nil {
		panic(err)
	}
	defer s.Close()
	defer s.Rescue()
	if err := s.Draw([]string{"first", "second"}); err != nil {
		panic(err)
	}
	key := <-s.Typed()
	if what == "panic" {
		done := make(chan struct{})
		go func() {
			defer s.Rescue()
			panic("out of luck")
		}()
		<-done
	}
	_ = s.Draw([]string{"first", "typed " + string(key)})
	<-s.Typed()
}

// start runs program on a terminal. all is everything that the program has written when it has
// ended.
func start(t *testing.T, what string) (master *os.File, screen *vt.Terminal,
	until func(text string), all func() string) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), asProgram+"="+what)
	master, err := pty.StartWithSize(cmd, &pty.Winsize{Cols: 40, Rows: 10})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { master.Close() })
	screen = vt.New(40, 10)
	var text strings.Builder
	out := io.TeeReader(master, io.MultiWriter(screen, &text))
	buf := make([]byte, 4096)
	until = func(want string) {
		t.Helper()
		_ = master.SetReadDeadline(time.Now().Add(30 * time.Second))
		for !strings.Contains(screen.String(), want) {
			if _, err := out.Read(buf); err != nil {
				t.Fatalf("%v before %q is there:\n%s", err, want, screen)
			}
		}
	}
	return master, screen, until, func() string {
		_ = master.SetReadDeadline(time.Now().Add(30 * time.Second))
		_, _ = io.Copy(io.Discard, out) // until the program has ended
		_ = cmd.Wait()
		return text.String()
	}
}

func TestDrawWritesWhatHasChanged(t *testing.T) {
	master, screen, until, all := start(t, "draw")
	until("second")
	io.WriteString(master, "x")
	until("typed x")
	io.WriteString(master, "x")
	text := all()
	if n := strings.Count(text, "first"); n != 1 {
		t.Errorf("a line that is the same was written %d times", n)
	}
	left(t, screen)
	if strings.Contains(screen.String(), "typed") {
		t.Errorf("what was on the screen before is not there again:\n%s", screen)
	}
}

func TestAPanicLeavesTheTerminalAsItWas(t *testing.T) {
	master, screen, until, all := start(t, "panic")
	until("second")
	io.WriteString(master, "x")
	text := all()
	left(t, screen)
	if i := strings.Index(text, "?1049l"); i < 0 || !strings.Contains(text[i:], "panic: out of luck") {
		t.Errorf("its last words are not on the terminal as it was: %q", text)
	}
}

func left(t *testing.T, s *vt.Terminal) {
	t.Helper()
	if s.Alternate || s.Hidden || s.NoWrap {
		t.Errorf("alternate screen %v, no cursor %v, no wrapping %v", s.Alternate, s.Hidden, s.NoWrap)
	}
}
