package peer

import (
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

func TestPeerGroups(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fds[0])
	defer unix.Close(fds[1])
	want, err := os.Getgroups()
	if err != nil {
		t.Fatal(err)
	}
	got := groups(fds[0])
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("our own groups are %v, not %v", want, got)
	}
}
