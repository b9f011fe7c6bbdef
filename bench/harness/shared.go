package harness

import (
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Shared is a page that all workers of a fleet map: who is inside a lock now, who
// was last, and with which fence. It sees what no client is told.
type Shared struct {
	page                []byte
	inside, last, fence *atomic.Uint64
}

// Seen is what one contender found when it entered.
type Seen struct {
	Handoff    bool // somebody else was the last inside
	Overlap    bool // somebody is inside
	FenceFault bool // the last fence is no smaller than ours
}

// NewShared makes the page as a file in dir and returns its path.
func NewShared(dir string) (string, error) {
	f, err := os.CreateTemp(dir, "shared-*")
	if err != nil {
		return "", err
	}
	defer f.Close()
	return filepath.Clean(f.Name()), f.Truncate(int64(os.Getpagesize()))
}

// OpenShared maps the page.
func OpenShared(path string) (*Shared, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	page, err := unix.Mmap(int(f.Fd()), 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map shared page: %w", err)
	}
	word := func(i int) *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Pointer(&page[64*i])) }
	return &Shared{page, word(0), word(1), word(2)}, nil
}

// Enter is called by contender id (not 0) with the lock held.
func (s *Shared) Enter(id, fence uint64) Seen {
	return Seen{
		Overlap:    !s.inside.CompareAndSwap(0, id),
		Handoff:    s.last.Swap(id) != id,
		FenceFault: s.fence.Swap(fence) >= fence,
	}
}

// Leave is called by contender id before it gives the lock up.
func (s *Shared) Leave(id uint64) { s.inside.CompareAndSwap(id, 0) }

// Close unmaps the page.
func (s *Shared) Close() error { return unix.Munmap(s.page) }
