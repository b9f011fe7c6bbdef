package tuning

import (
	"bufio"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// dropPages unmaps the pages of the program's file. The start has used most of them; an idle daemon
// needs a quarter: 4 MB instead of 16 MB. Most of its resident memory would be these pages,
// although the kernel could take them at any time. It maps a page again, from its cache, when it is
// used.
//
// It leaves mappings alone that have pages of their own, such as the relocated data of a
// position-independent program: these pages are not in the file.
func dropPages() {
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return
	}
	maps, err := os.Open("/proc/self/smaps")
	if err != nil {
		return
	}
	defer maps.Close()
	var from, to uintptr // the present mapping, if it is read-only and maps the program's file
	for lines := bufio.NewScanner(maps); lines.Scan(); {
		line := lines.Text()
		var a, b uintptr
		var rights string
		if _, err := fmt.Sscanf(line, "%x-%x %s", &a, &b, &rights); err == nil && len(rights) == 4 {
			from, to = 0, 0
			if rights[0] == 'r' && rights[1] == '-' && strings.HasSuffix(line, " "+exe) {
				from, to = a, b
			}
			continue
		}
		own, found := strings.CutPrefix(line, "Anonymous:")
		if found && to > from && strings.TrimSpace(own) == "0 kB" {
			_, _, _ = unix.Syscall(unix.SYS_MADVISE, from, to-from, unix.MADV_DONTNEED)
		}
	}
}
