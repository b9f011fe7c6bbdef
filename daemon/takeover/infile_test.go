package takeover

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/locksidecar/locksidecar/daemon/listen"
)

// parked leaves a state in a file beside a socket, and returns the socket's path.
func parked(t *testing.T) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	parkedAt(t, socket)
	return socket
}

func parkedAt(t *testing.T, socket string) (path string) {
	t.Helper()
	o := Offer{Form: Form, PID: 7, Socket: socket, Stores: []OfferedStore{{Name: "a", Locked: true}}}
	if err := ParkInFile(o, []byte("snapshot")); err != nil {
		t.Fatal(err)
	}
	return parkedFile(socket)
}

// A state in a file is there until a process receives it, and while no process serves the socket.
func TestAParkedFileIsUsedOnce(t *testing.T) {
	socket := parked(t)
	for range 2 { // the first process fails before it receives the state
		s, err := FindInFile(socket)
		if err != nil || s == nil || !s.Parked() || s.PID() != 7 {
			t.Fatalf("%+v %v", s, err)
		}
		if other, err := FindInFile(socket); other != nil || err != nil {
			t.Errorf("another process has it, too: %+v %v", other, err)
		}
		s.Close()
	}
	s, err := FindInFile(socket)
	if err != nil {
		t.Fatal(err)
	}
	r, err := s.Receive(map[string]string{"a": ""})
	if err != nil || !bytes.Equal(r.Snapshot, []byte("snapshot")) {
		t.Errorf("%+v %v", r, err)
	}
	lock := s.SocketLock()
	if _, err := listen.Lock(socket); !errors.Is(err, listen.ErrInUse) {
		t.Errorf("the socket is not locked: %v", err)
	}
	lock.Close()
	s.Close()
	if s, err := FindInFile(socket); s != nil || err != nil {
		t.Errorf("it is there again: %+v %v", s, err)
	}
	if left, _ := filepath.Glob(socket + ".parked*"); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// A state that has been used, or that a process has done without, is not used under another name of
// its file either.
func TestAParkedFileIsMarked(t *testing.T) {
	for name, end := range map[string]func(*State){
		"used":      func(s *State) { _, _ = s.Receive(map[string]string{"a": ""}); s.Close() },
		"discarded": (*State).Discard,
	} {
		t.Run(name, func(t *testing.T) {
			socket := parked(t)
			path := parkedFile(socket)
			if err := os.Link(path, path+"2"); err != nil {
				t.Fatal(err)
			}
			s, err := FindInFile(socket)
			if err != nil {
				t.Fatal(err)
			}
			end(s)
			if err := os.Rename(path+"2", path); err != nil {
				t.Fatal(err)
			}
			if s, err := FindInFile(socket); s != nil || !errors.Is(err, errTaken) {
				t.Errorf("%+v %v", s, err)
			}
		})
	}
}

// A process that was killed while it wrote the file does not keep the next one from that.
func TestAnUnfinishedParkedFileIsReplaced(t *testing.T) {
	socket := parked(t)
	if err := os.WriteFile(parkedFile(socket)+".new", []byte("half"), 0o400); err != nil {
		t.Fatal(err)
	}
	if err := ParkInFile(Offer{Form: Form, PID: 8, Socket: socket}, nil); err != nil {
		t.Fatal(err)
	}
	s, err := FindInFile(socket)
	if err != nil || s.PID() != 8 {
		t.Fatalf("%+v %v", s, err)
	}
	s.Discard()
	if left, _ := filepath.Glob(parkedFile(socket) + "*"); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// A file that cannot be used is removed, and the error says so.
func TestAUselessParkedFileIsRemoved(t *testing.T) {
	change := func(from, to string) func(*testing.T, string) {
		return func(t *testing.T, path string) {
			b, err := os.ReadFile(path)
			if err != nil || !bytes.Contains(b, []byte(from)) {
				t.Fatalf("%q %v", b, err)
			}
			if err := os.WriteFile(path, bytes.Replace(b, []byte(from), []byte(to), 1), 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, spoil := range map[string]func(t *testing.T, path string){
		"another boot":   change(`"Clock":"`, `"Clock":"0`),
		"another form":   change(`"Form":1`, `"Form":9`),
		"another socket": change(`/s"`, `/x"`),
		"cut":            func(_ *testing.T, path string) { _ = os.Truncate(path, 20) },
		"empty":          func(_ *testing.T, path string) { _ = os.Truncate(path, 0) },
		"of others, too": func(_ *testing.T, path string) { _ = os.Chmod(path, 0o644) },
		"a link": func(_ *testing.T, path string) {
			_ = os.Rename(path, path+"2")
			_ = os.Symlink(path+"2", path)
		},
	} {
		t.Run(name, func(t *testing.T) {
			socket := parked(t)
			path := parkedFile(socket)
			spoil(t, path)
			if s, err := FindInFile(socket); s != nil || !errors.Is(err, ErrParked) {
				t.Errorf("%+v %v", s, err)
			}
			if _, err := os.Lstat(path); !os.IsNotExist(err) {
				t.Errorf("it is still there: %v", err)
			}
			spoil(t, parkedAt(t, socket))
			if LeftInFile(socket) {
				t.Error("it counts as left")
			}
			if _, err := os.Lstat(path); !os.IsNotExist(err) {
				t.Errorf("it is still there: %v", err)
			}
			if s, err := FindInFile(socket); s != nil || err != nil {
				t.Errorf("%+v %v", s, err)
			}
		})
	}
}
