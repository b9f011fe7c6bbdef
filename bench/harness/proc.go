package harness

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// RSS returns the resident memory of a process in bytes. It returns 0 on systems without /proc.
func RSS(pid int) int64 { return statusBytes(pid, "VmRSS:") }

// PeakRSS returns the largest RSS so far.
func PeakRSS(pid int) int64 { return statusBytes(pid, "VmHWM:") }

// Descriptors returns how many files a process has open. It returns 0 on systems without /proc.
func Descriptors(pid int) int {
	fds, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	return len(fds)
}

// DescriptorLimit raises the limit of open files for this process and its later children, if
// possible to want. It returns the new limit.
func DescriptorLimit(want int) (int, error) {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return 0, err
	}
	if l.Max < uint64(want) { // root may raise it, unless root itself is restricted
		more := unix.Rlimit{Cur: uint64(want), Max: uint64(want)}
		if unix.Setrlimit(unix.RLIMIT_NOFILE, &more) == nil {
			return want, nil
		}
	}
	l.Cur = l.Max
	return int(min(l.Max, 1<<30)), unix.Setrlimit(unix.RLIMIT_NOFILE, &l)
}

func statusBytes(pid int, field string) int64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, field); ok {
			kb, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return kb << 10
		}
	}
	return 0
}

// machineTimes has the CPU time of the machine so far.
type machineTimes struct{ total, idle, steal float64 }

func readMachineTimes() (m machineTimes) {
	b, _ := os.ReadFile("/proc/stat")
	line, _, _ := strings.Cut(string(b), "\n")
	f := strings.Fields(line)
	for i := 1; i < len(f) && i <= 8; i++ {
		v, _ := strconv.ParseFloat(f[i], 64)
		m.total += v
		switch i {
		case 4, 5: // idle, iowait
			m.idle += v
		case 8:
			m.steal += v
		}
	}
	return m
}

// since returns the shares of the time that were idle and stolen, in percent.
func (m machineTimes) since(o machineTimes) (idle, steal float64) {
	t := m.total - o.total
	if t <= 0 {
		return 0, 0
	}
	return 100 * (m.idle - o.idle) / t, 100 * (m.steal - o.steal) / t
}

// time returns the CPU time that was available over all cores, and the used part of it.
func (m machineTimes) time(o machineTimes) (all, used time.Duration) {
	const tick = time.Second / 100
	all = time.Duration((m.total - o.total) * float64(tick))
	return all, all - time.Duration((m.idle-o.idle+m.steal-o.steal)*float64(tick))
}
