package harness

import (
	"net"
	"os"
	"runtime"
	"testing"
)

func TestConnectionsAreThoseToThePort(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("is read from /proc")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	addr := l.Addr().String()
	for want := range 3 {
		// accepted connections have other remote ports
		if n := Connections(addr, os.Getpid()); n != want {
			t.Errorf("%d connections are counted as %d", want, n)
		}
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	if n := Connections(addr, os.Getppid()); n != 0 {
		t.Errorf("another process has %d", n)
	}
}
