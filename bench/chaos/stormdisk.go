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

// mountSmall puts the socket, and the embedded store's state beside it, on a disk of their own that
// can be filled. It needs root; without it nobody fills a disk.
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

// fillDisk leaves no room for the embedded store's state for some time. Other stores' locks are not
// concerned. With room again all goes on by itself.
func (st *site) fillDisk() {
	filler := filepath.Join(st.run, "filler")
	f, err := os.Create(filler)
	if err == nil {
		_, err = f.Write(make([]byte, 1<<20)) // as much as fits
		f.Close()
	}
	if err == nil {
		st.s.fail("broken", "the disk of daemon %d does not fill", st.no)
	}
	long := 2 * time.Second
	if st.rnd.IntN(4) == 0 {
		long = 12 * time.Second // the embedded store's sessions end
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

// lostByTakeover are the reasons for which a takeover may take a lock away.
func (st *site) lostByTakeover() (why []protocol.Reason) {
	for _, d := range st.s.depots {
		if d.kind == "zookeeper" {
			why = append(why, protocol.LostSession)
		}
	}
	return why
}
