package sock_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/protocol/sock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pair returns the two ends of a connection. The first is a Conn.
func pair(t testing.TB, network string) (*sock.Conn, sock.Stream) {
	t.Helper()
	addr := "127.0.0.1:0"
	if network == "unix" {
		addr = filepath.Join(t.TempDir(), "s")
	}
	l, err := net.Listen(network, addr)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial(network, l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	other, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	s, err := sock.New(c.(sock.Stream))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close(); other.Close() })
	return s, other.(sock.Stream)
}

func each(t *testing.T, f func(*testing.T, *sock.Conn, sock.Stream)) {
	for _, network := range []string{"unix", "tcp"} {
		t.Run(network, func(t *testing.T) {
			s, other := pair(t, network)
			f(t, s, other)
		})
	}
}

func TestWhatIsWrittenIsRead(t *testing.T) {
	each(t, func(t *testing.T, s *sock.Conn, other sock.Stream) {
		go io.Copy(other, other)
		var wg sync.WaitGroup
		defer wg.Wait()
		sent := bytes.Repeat([]byte("0123456789abcdef"), 1<<16) // more than both buffers hold
		wg.Go(func() {
			if n, err := s.Write(sent); n != len(sent) || err != nil {
				t.Errorf("written %d of %d: %v", n, len(sent), err)
			}
		})
		got := make([]byte, len(sent))
		if _, err := io.ReadFull(s, got); err != nil || !bytes.Equal(got, sent) {
			t.Errorf("read back otherwise, %v", err)
		}
	})
}

func TestTryWriteDoesNotWait(t *testing.T) {
	each(t, func(t *testing.T, s *sock.Conn, other sock.Stream) {
		b := make([]byte, 1<<20)
		all := 0
		for {
			n, err := s.TryWrite(b)
			if err != nil {
				t.Fatal(err)
			}
			if all += n; n == 0 {
				break
			}
		}
		if _, err := io.ReadFull(other, make([]byte, all)); err != nil {
			t.Error(err)
		}
	})
}

func TestEndOfTheOtherSide(t *testing.T) {
	each(t, func(t *testing.T, s *sock.Conn, other sock.Stream) {
		if err := s.Idle(); err != nil {
			t.Errorf("idle: %v", err)
		}
		other.Write([]byte("bye"))
		b := make([]byte, 8)
		if n, err := s.Read(b); string(b[:n]) != "bye" || err != nil {
			t.Fatalf("read %q, %v", b[:n], err)
		}
		other.Close()
		if _, err := s.Read(b); err != io.EOF {
			t.Errorf("read: %v", err)
		}
		if err := s.Idle(); err != io.EOF {
			t.Errorf("idle: %v", err)
		}
	})
}

func TestCloseEndsReadAndWrite(t *testing.T) {
	each(t, func(t *testing.T, s *sock.Conn, other sock.Stream) {
		var wg sync.WaitGroup
		reads, writes := make(chan error, 1), make(chan error, 1)
		wg.Go(func() {
			_, err := s.Read(make([]byte, 1))
			reads <- err
		})
		wg.Go(func() {
			_, err := s.Write(make([]byte, 64<<20))
			writes <- err
		})
		other.Read(make([]byte, 1)) // the writer has begun
		var closes [2]error
		for i := range closes {
			wg.Go(func() { closes[i] = s.Close() })
		}
		wg.Wait()
		for _, err := range []error{<-reads, <-writes, errors.Join(closes[:]...), s.CloseWrite(),
			s.Idle(), s.SetDeadline(time.Time{})} {
			if !errors.Is(err, net.ErrClosed) {
				t.Errorf("%v", err)
			}
		}
	})
}

func TestDeadlines(t *testing.T) {
	each(t, func(t *testing.T, s *sock.Conn, other sock.Stream) {
		s.SetDeadline(time.Now().Add(time.Millisecond))
		if _, err := s.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("read: %v", err)
		}
		if _, err := s.Write(make([]byte, 64<<20)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("write: %v", err)
		}
		s.SetDeadline(time.Time{})
		other.Write([]byte("x"))
		if n, err := s.Read(make([]byte, 8)); n != 1 || err != nil {
			t.Errorf("read %d, %v", n, err)
		}
		done := make(chan error)
		go func() {
			_, err := s.Read(make([]byte, 8))
			done <- err
		}()
		s.SetReadDeadline(time.Now()) // also ends a wait in progress
		if err := <-done; !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("read: %v", err)
		}
	})
}

func TestHalves(t *testing.T) {
	each(t, func(t *testing.T, s *sock.Conn, other sock.Stream) {
		if err := s.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if _, err := other.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("the other side reads: %v", err)
		}
		done := make(chan error)
		go func() {
			_, err := s.Read(make([]byte, 1))
			done <- err
		}()
		if err := s.CloseRead(); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != io.EOF {
			t.Errorf("read: %v", err)
		}
	})
}

func TestRoundTripAllocatesNothing(t *testing.T) {
	s, other := pair(t, "unix")
	b, ob := make([]byte, 64), make([]byte, 64)
	go func() {
		for {
			n, err := other.Read(ob)
			if err != nil {
				return
			}
			other.Write(ob[:n])
		}
	}()
	if n := testing.AllocsPerRun(200, func() {
		s.TryWrite(b)
		if _, err := io.ReadFull(s, b); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
