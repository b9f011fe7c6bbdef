package chaos

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/protocol/client"
)

func lockThread() { runtime.LockOSThread() }

// mountSmall puts the socket, and the state of the embedded store beside it, on a small disk of
// their own that can be filled. It needs root. Without root, no disk is filled.
func (st *site) mountSmall() {
	if os.Geteuid() != 0 {
		return
	}
	if err := syscall.Mount("tmpfs", st.run, "tmpfs", 0, "size=256k,mode=711"); err != nil {
		st.s.Log("storm: no full disk: %v", err)
		return
	}
	st.small = true
	st.s.t.Cleanup(func() { _ = syscall.Unmount(st.run, syscall.MNT_DETACH) })
}

// fillDisk leaves no room for the state of the embedded store for some time. The locks of other
// stores are not affected. When there is room again, everything continues by itself.
func (st *site) fillDisk() {
	filler := filepath.Join(st.run, "filler")
	f, err := os.Create(filler)
	if err == nil {
		_, err = f.Write(make([]byte, 1<<20)) // until the disk is full
		f.Close()
	}
	if err == nil {
		st.s.fail("broken", "the disk of daemon %d does not fill", st.no)
	}
	long := 2 * time.Second
	if st.rnd.IntN(4) == 0 {
		long = 12 * time.Second // long enough for the sessions of the embedded store to end
	}
	end := time.Now().Add(long)
	if c, err := st.dial(); err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		h, err := c.Lock(ctx, client.AcquireArgs{Key: "on a full disk", Owner: 1, Wait: time.Second})
		if err == nil {
			_ = h.Release(ctx)
		}
		cancel()
		c.Close()
	}
	if st.rnd.IntN(3) == 0 {
		st.takeOver("takeover: with a full disk", 1, func([]*process) {})
		st.s.note("takeover: with a full disk")
	}
	time.Sleep(time.Until(end))
	if err := os.Remove(filler); err != nil {
		panic(broken{err})
	}
	if err := st.grants("", time.Now().Add(patience)); err != nil {
		st.s.fail("recovery", "daemon %d grants nothing in the embedded store though its disk has room again: %v", st.no, err)
	}
}

// lostByTakeover returns the reasons with which a takeover may end a hold.
func (st *site) lostByTakeover() (why []protocol.Reason) {
	for _, d := range st.s.depots {
		if d.kind == "zookeeper" {
			why = append(why, protocol.LostSession)
		}
	}
	return why
}
