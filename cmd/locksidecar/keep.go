package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/daemon/takeover"
)

// This file parks the daemon's state with the service manager, and finds a parked state. The
// manager keeps the descriptors between a daemon that ends and the next one (sd_notify(3),
// FDSTORE=1).

// keptPrefix begins the names of the kept descriptors. Their numbers follow, because the manager
// returns the descriptors in no particular order.
const keptPrefix = "locksidecar."

func keptName(i int) string { return keptPrefix + strconv.Itoa(i) }

// keptWithin bounds the time that the manager may take to accept all descriptors.
const keptWithin = 5 * time.Second

// park parks the daemon's state with the manager for the next process. If it returns false, the
// daemon has to drain.
func (s *server) park() bool {
	if at, _ := s.m.Env("NOTIFY_SOCKET"); at == "" || !s.conf.KeepOverRestart {
		return false
	}
	err := s.Park(func(files []int) error {
		// The manager does not say that it has kept a part only. Its version 254 states its limit.
		limit, _ := s.m.Env("FDSTORE")
		if n, err := strconv.Atoi(limit); err == nil && n < len(files) {
			return fmt.Errorf("the manager keeps %d descriptors (FileDescriptorStoreMax=), "+
				"and there are %d", n, len(files))
		}
		return s.withManager(func(c *net.UnixConn) error {
			for i, fd := range files {
				// FDPOLL=0: the manager must not drop the descriptor of a client that has gone, because the
				// next process needs all descriptors.
				state := "FDSTORE=1\nFDNAME=" + keptName(i) + "\nFDPOLL=0"
				if err := sendWithFD(c, state, fd); err != nil {
					return err
				}
			}
			return nil
		})
	})
	if err != nil {
		s.log.Error("state not parked for the next process; draining",
			zap.String("event", "park_failed"), zap.Error(err))
	}
	return err == nil
}

// findParked returns the state that an earlier process has parked with the manager. It returns nil
// if there is none, or if it cannot be used.
func (s *server) findParked(kept []*os.File) *takeover.State {
	if len(kept) == 0 {
		return nil
	}
	var names []string
	for _, f := range kept {
		names = append(names, f.Name())
	}
	state, err := takeover.FindParked(kept)
	// The manager drops the descriptors before this process serves: a later process must not find them
	// again, and a file lock lasts while any process has its descriptor open.
	removal := s.withManager(func(c *net.UnixConn) error {
		for _, name := range names {
			if _, err := c.Write([]byte("FDSTOREREMOVE=1\nFDNAME=" + name)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil || removal != nil {
		s.log.Error("parked state of the last process cannot be used",
			zap.String("event", "parked_unusable"), zap.Error(errors.Join(err, removal)))
	}
	if err != nil {
		return nil
	}
	return state
}

// findInFile returns the state that an earlier process has parked in a file. It returns nil if
// there is none, or if it cannot be used.
func (s *server) findInFile() *takeover.State {
	state, err := takeover.FindInFile(s.conf.Socket)
	if err != nil {
		s.log.Error("detached holds of the last process cannot be taken over; they end at the store",
			zap.String("event", "parked_unusable"), zap.Error(err))
	}
	return state
}

// matchParked finds the stores of a parked state that the configuration does not have, and logs
// that their locks are lost.
func (s *server) matchParked(needs []*need) {
	if s.stores.takeover == nil {
		return
	}
	keys := make(map[string]string, len(needs))
	for _, d := range needs {
		keys[d.name] = d.publicKey()
	}
	for _, name := range s.stores.takeover.Match(keys) {
		s.log.Error("the last process has left locks at a store that the configuration does not "+
			"have, or not as it was then: they are lost, and end at the store with their TTLs; "+
			"to keep locks, reload a changed configuration before a restart",
			zap.String("event", "parked_without"), zap.String("store", storeName(name)))
	}
}

// discardParked discards a parked state that cannot be taken over, so that this process can serve
// without it.
func (s *server) discardParked(why error) {
	s.stores.takeover.Discard()
	s.stores.takeover = nil
	s.log.Error("parked state of the last process cannot be taken over: its clients' connections "+
		"and locks are lost, and this process serves anew",
		zap.String("event", "parked_unusable"), zap.Error(why))
}

// withManager calls tell with a connection to the manager, and waits until the manager has read
// everything that was sent: it closes the pipe that comes with BARRIER=1 only then.
func (s *server) withManager(tell func(*net.UnixConn) error) error {
	at, _ := s.m.Env("NOTIFY_SOCKET")
	nc, err := net.DialTimeout("unixgram", at, tellWithin)
	if err != nil {
		return err
	}
	c := nc.(*net.UnixConn)
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(keptWithin))
	if err := tell(c); err != nil {
		return err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	raw, err := w.SyscallConn()
	if err == nil {
		var sent error
		err = raw.Control(func(fd uintptr) { sent = sendWithFD(c, "BARRIER=1", int(fd)) })
		err = errors.Join(err, sent)
	}
	_ = w.Close()
	if err != nil {
		return err
	}
	_ = r.SetReadDeadline(time.Now().Add(keptWithin))
	if _, err := r.Read(make([]byte, 1)); err != io.EOF {
		return fmt.Errorf("the service manager does not confirm: %w", err)
	}
	return nil
}

// sendWithFD sends a state and a descriptor to the manager. Package net cannot send a descriptor on
// a connected socket.
func sendWithFD(c *net.UnixConn, state string, fd int) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var sent error
	err = raw.Write(func(s uintptr) bool {
		sent = unix.Sendmsg(int(s), []byte(state), unix.UnixRights(fd), nil, 0)
		return sent != unix.EAGAIN
	})
	return errors.Join(err, os.NewSyscallError("sendmsg", sent))
}

// splitGiven separates the descriptors that an earlier process has parked from the sockets that the
// manager has made. It returns the parked ones in their original order.
func splitGiven(given []*os.File) (sockets, kept []*os.File) {
	numbers := make(map[*os.File]int)
	for _, f := range given {
		n, err := strconv.Atoi(strings.TrimPrefix(f.Name(), keptPrefix))
		if err != nil || !strings.HasPrefix(f.Name(), keptPrefix) {
			sockets = append(sockets, f)
			continue
		}
		numbers[f] = n
		kept = append(kept, f)
	}
	slices.SortFunc(kept, func(a, b *os.File) int { return numbers[a] - numbers[b] })
	return sockets, kept
}
