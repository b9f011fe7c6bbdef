package faultproxy

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const bound = 30 * time.Second

// each runs a test on both kinds of socket. The test is the server: dial returns both ends of a new
// connection.
func each(t *testing.T, f func(t *testing.T, p *Proxy, dial func() (client, server net.Conn))) {
	for _, network := range []string{"tcp", "unix"} {
		t.Run(network, func(t *testing.T) {
			addr := "127.0.0.1:0"
			if network == "unix" {
				addr = filepath.Join(t.TempDir(), "server")
			}
			l, err := net.Listen(network, addr)
			if err != nil {
				t.Fatal(err)
			}
			var p *Proxy
			if network == "unix" {
				p, err = Unix(filepath.Join(t.TempDir(), "proxy"), l.Addr().String())
			} else {
				p, err = TCP(l.Addr().String())
			}
			if err != nil {
				t.Fatal(err)
			}
			var open []io.Closer
			t.Cleanup(func() {
				p.Close()
				l.Close()
				for _, c := range open {
					c.Close()
				}
			})
			f(t, p, func() (net.Conn, net.Conn) {
				c, err := net.Dial(network, p.Addr())
				if err != nil {
					t.Fatal(err)
				}
				l.(interface{ SetDeadline(time.Time) error }).SetDeadline(time.Now().Add(bound))
				s, err := l.Accept()
				if err != nil {
					t.Fatal(err)
				}
				c.SetDeadline(time.Now().Add(bound))
				s.SetDeadline(time.Now().Add(bound))
				open = append(open, c, s)
				return c, s
			})
		})
	}
}

func send(t *testing.T, c net.Conn, s string) {
	t.Helper()
	if _, err := io.WriteString(c, s); err != nil {
		t.Error(err)
	}
}

func expect(t *testing.T, c net.Conn, want string) {
	t.Helper()
	b := make([]byte, len(want))
	if _, err := io.ReadFull(c, b); err != nil || string(b) != want {
		t.Errorf("got %q, %v; want %q", b, err, want)
	}
}

// ended expects the end of c, and no bytes before it.
func ended(t *testing.T, c net.Conn) {
	t.Helper()
	n, err := c.Read(make([]byte, 1))
	if n != 0 || err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read %d, %v; want the end", n, err)
	}
}

// silent expects that no bytes arrive.
func silent(t *testing.T, c net.Conn) {
	t.Helper()
	c.SetReadDeadline(time.Now().Add(30 * time.Millisecond))
	if n, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read %d, %v; want silence", n, err)
	}
	c.SetReadDeadline(time.Now().Add(bound))
}

func gone(t *testing.T, p *Proxy) {
	t.Helper()
	for end := time.Now().Add(bound); p.Conns() > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("connections are left")
		}
	}
}

func TestForwardsBothWaysAndHalfCloses(t *testing.T) {
	each(t, func(t *testing.T, p *Proxy, dial func() (net.Conn, net.Conn)) {
		c, s := dial()
		send(t, c, "hello")
		expect(t, s, "hello")
		closeWrite(c)
		ended(t, s)
		send(t, s, "still there")
		expect(t, c, "still there")
		s.Close()
		ended(t, c)
		gone(t, p)
		if p.Passed(ToServer) != 5 || p.Passed(Both) != 16 || p.Accepted() != 1 {
			t.Errorf("%d and %d bytes, %d connections", p.Passed(ToServer), p.Passed(ToClient), p.Accepted())
		}
	})
}

func TestDelayIsALineNotAQueue(t *testing.T) {
	each(t, func(t *testing.T, p *Proxy, dial func() (net.Conn, net.Conn)) {
		const delay, n = 100 * time.Millisecond, 200
		c, s := dial()
		p.Delay(ToServer, delay)
		begin := time.Now()
		for range n {
			send(t, c, "x")
			// spreads the bytes over several reads; the result does not depend on it
			time.Sleep(time.Millisecond / 2)
		}
		for range n {
			expect(t, s, "x")
		}
		took := time.Since(begin)
		if took < delay || took > n*delay/2 {
			t.Errorf("%d messages at %v each took %v", n, delay, took)
		}
		send(t, s, "at once")
		expect(t, c, "at once")
	})
}

func TestOrderStaysWhateverChanges(t *testing.T) {
	each(t, func(t *testing.T, p *Proxy, dial func() (net.Conn, net.Conn)) {
		c, s := dial()
		data := make([]byte, 2<<20)
		for i := range data {
			data[i] = byte(rand.Uint32())
		}
		go func() {
			c.Write(data)
			closeWrite(c)
		}()
		stop := make(chan struct{})
		done := make(chan struct{})
		go func() {
			defer close(done)
			for {
				select {
				case <-stop:
					return
				default:
				}
				p.Delay(Both, time.Duration(rand.IntN(3))*time.Millisecond)
				p.Throttle(Both, 10<<20+rand.IntN(100<<20))
				p.Stall(Both, rand.IntN(4) == 0)
				time.Sleep(time.Millisecond)
			}
		}()
		got := make([]byte, len(data))
		_, err := io.ReadFull(s, got)
		close(stop)
		<-done
		if err != nil || !bytes.Equal(got, data) {
			t.Errorf("the stream is another: %v", err)
		}
		if err := p.Heal(); err != nil {
			t.Fatal(err)
		}
		ended(t, s)
	})
}

func TestThrottle(t *testing.T) {
	each(t, func(t *testing.T, p *Proxy, dial func() (net.Conn, net.Conn)) {
		c, s := dial()
		p.Throttle(ToServer, 100_000)
		begin := time.Now()
		msg := string(make([]byte, 20_000))
		send(t, c, msg)
		expect(t, s, msg)
		if took := time.Since(begin); took < 150*time.Millisecond {
			t.Errorf("20 kB at 100 kB/s took %v", took)
		}
	})
}

func TestStallIsHalfOpen(t *testing.T) {
	each(t, func(t *testing.T, p *Proxy, dial func() (net.Conn, net.Conn)) {
		c, s := dial()
		p.Stall(ToClient, true)
		send(t, c, "ask")
		expect(t, s, "ask")
		send(t, s, "answer")
		s.Close() // the end of file waits, too
		silent(t, c)
		p.Stall(ToClient, false)
		expect(t, c, "answer")
		ended(t, c)
	})
}

func TestBlackHole(t *testing.T) {
	each(t, func(t *testing.T, p *Proxy, dial func() (net.Conn, net.Conn)) {
		idle, idleServer := dial()
		c, s := dial()
		p.BlackHole(Both, true)
		send(t, c, "lost")
		send(t, s, "lost")
		silent(t, s)
		silent(t, c)
		fresh, err := net.Dial(c.LocalAddr().Network(), p.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer fresh.Close()
		fresh.SetDeadline(time.Now().Add(bound))
		send(t, fresh, "anybody?")
		silent(t, fresh)
		p.BlackHole(Both, false)
		ended(t, c)
		ended(t, s)
		ended(t, fresh)
		send(t, idle, "nothing of mine was lost")
		expect(t, idleServer, "nothing of mine was lost")
	})
}

func TestCutAndReset(t *testing.T) {
	each(t, func(t *testing.T, p *Proxy, dial func() (net.Conn, net.Conn)) {
		c, s := dial()
		d, e := dial()
		if n := p.Cut(); n != 2 {
			t.Errorf("cut %d", n)
		}
		for _, x := range []net.Conn{c, s, d, e} {
			ended(t, x)
		}
		gone(t, p)
		c, _ = dial()
		p.Reset()
		_, err := c.Read(make([]byte, 1))
		if c.LocalAddr().Network() == "tcp" && !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("after a reset: %v", err)
		}
		c, s = dial()
		send(t, c, "again")
		expect(t, s, "again")
	})
}

func TestRefuse(t *testing.T) {
	each(t, func(t *testing.T, p *Proxy, dial func() (net.Conn, net.Conn)) {
		c, s := dial()
		for range 3 {
			if err := p.Refuse(true); err != nil {
				t.Fatal(err)
			}
			if nc, err := net.Dial(c.LocalAddr().Network(), p.Addr()); !errors.Is(err,
				syscall.ECONNREFUSED) {
				if nc != nil {
					nc.Close()
				}
				t.Errorf("dial: %v", err)
			}
			send(t, c, "stands")
			expect(t, s, "stands")
			if err := p.Refuse(false); err != nil {
				t.Fatal(err)
			}
			d, e := dial()
			send(t, d, "new")
			expect(t, e, "new")
		}
	})
}

func TestServerThatIsNotThere(t *testing.T) {
	p, err := Unix(filepath.Join(t.TempDir(), "p"), filepath.Join(t.TempDir(), "nobody"))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	c, err := net.Dial("unix", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ended(t, c)
	gone(t, p)
}

func TestCloseInTheMiddleOfEverything(t *testing.T) {
	each(t, func(t *testing.T, p *Proxy, dial func() (net.Conn, net.Conn)) {
		p.Delay(ToServer, time.Hour)
		c, _ := dial()
		send(t, c, "never")
		p.Stall(ToClient, true)
		_, s := dial()
		send(t, s, "never")
		p.BlackHole(ToServer, true)
		c, err := net.Dial(c.LocalAddr().Network(), p.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		p.Close()
		if p.Conns() != 0 {
			t.Errorf("%d connections after Close", p.Conns())
		}
		if err := p.Refuse(false); !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	})
}
