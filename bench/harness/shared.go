package harness

import (
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Shared is a page that all workers of a fleet map. It has the contender inside the lock, the one
// that was last inside, and its fence. So it detects faults that no client is told of.
type Shared struct {
	page                []byte
	inside, last, fence *atomic.Uint64
}

// Seen is what a contender found when it entered.
type Seen struct {
	Handoff    bool // another contender was the last one inside
	Overlap    bool // another contender is inside
	FenceFault bool // the last fence is not smaller than the new one
}

// NewShared creates the page as a file in dir, and returns its path.
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

// Enter is called by contender id (not 0) while it holds the lock.
func (s *Shared) Enter(id, fence uint64) Seen {
	return Seen{
		Overlap:    !s.inside.CompareAndSwap(0, id),
		Handoff:    s.last.Swap(id) != id,
		FenceFault: s.fence.Swap(fence) >= fence,
	}
}

// Leave is called by contender id before it releases the lock.
func (s *Shared) Leave(id uint64) { s.inside.CompareAndSwap(id, 0) }

// Close unmaps the page.
func (s *Shared) Close() error { return unix.Munmap(s.page) }
