package load

import (
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/bench/harness"
	"github.com/locksidecar/locksidecar/protocol"
)

// board is like harness.Shared, for many keys and with readers. It has a slot of memory per key,
// and all workers map it. The first slot has the layout of the page of Shared.
type board struct {
	memory []byte
	slots  []slot
}

const slotSize = 256

type slot struct {
	// the contender that is inside exclusively; the one that was last inside
	inside, last *atomic.Uint64
	fence        *atomic.Uint64 // the largest fence
	exclusive    *atomic.Uint64 // the last fence of an exclusive holder
	readers      *atomic.Uint64 // number of readers inside
}

// NewBoard creates a board for that many keys as a file in dir, and returns its path.
func NewBoard(dir string, keys int) (string, error) {
	path, err := harness.NewShared(dir)
	if err != nil {
		return "", err
	}
	return path, os.Truncate(path, int64(keys)*slotSize)
}

func openBoard(path string, keys int) (*board, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	memory, err := unix.Mmap(int(f.Fd()), 0, keys*slotSize, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map the board: %w", err)
	}
	b := &board{memory: memory}
	for i := range keys {
		word := func(at int) *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Pointer(&memory[slotSize*i+at])) }
		b.slots = append(b.slots, slot{word(0), word(64), word(128), word(136), word(192)})
	}
	return b, nil
}

// enter is called by contender id (not 0) while it holds the lock. A fence of 0 means that there is
// none.
func (b *board) enter(key int, id, fence uint64, mode protocol.Mode) harness.Seen {
	s := &b.slots[key]
	var seen harness.Seen
	if mode == protocol.Shared {
		s.readers.Add(1)
		seen.Overlap = s.inside.Load() != 0
		// The fences of readers are not ordered among themselves.
		seen.FenceFault = fence != 0 && fence <= s.exclusive.Load()
		for known := s.fence.Load(); fence > known &&
			!s.fence.CompareAndSwap(known, fence); known = s.fence.Load() {
		}
	} else {
		seen.Overlap = !s.inside.CompareAndSwap(0, id)
		seen.Overlap = s.readers.Load() != 0 || seen.Overlap
		seen.FenceFault = fence != 0 && s.fence.Swap(fence) >= fence
		s.exclusive.Store(fence)
	}
	seen.Handoff = s.last.Swap(id) != id
	return seen
}

// leave is called by contender id before it releases the lock.
func (b *board) leave(key int, id uint64, mode protocol.Mode) {
	if s := &b.slots[key]; mode == protocol.Shared {
		s.readers.Add(^uint64(0))
	} else {
		s.inside.CompareAndSwap(id, 0)
	}
}

func (b *board) close() error { return unix.Munmap(b.memory) }
