package harness

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
)

// Machine describes where something was measured, as far as a reader needs to know it.
type Machine struct {
	CPU      string
	Cores    int
	Memory   string
	OS       string
	Go       string
	Redis    string // empty if no Redis was used; the same is true of the other stores
	Etcd     string
	Maria    string
	Postgres string
	Commit   string // of the source, with "+" if it has changes
	Load     string // load average before the run
}

// DescribeMachine describes this machine, and the source in dir.
func DescribeMachine(dir string) Machine {
	m := Machine{Cores: runtime.NumCPU(), OS: runtime.GOOS + "/" + runtime.GOARCH,
		Go: runtime.Version(), CPU: "unknown"}
	if s := field("/proc/cpuinfo", "model name"); s != "" {
		m.CPU = s
	}
	m.Memory = field("/proc/meminfo", "MemTotal")
	if b, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		release, _, _ := strings.Cut(strings.TrimSpace(string(b)), "-")
		m.OS = "Linux " + release + ", " + runtime.GOARCH
	}
	if b, err := os.ReadFile("/proc/loadavg"); err == nil {
		m.Load = strings.Join(strings.Fields(string(b))[:3], " ")
	}
	git := func(args ...string) string {
		cmd := exec.Command("git", args...)
		cmd.Dir = dir
		out, _ := cmd.Output()
		return strings.TrimSpace(string(out))
	}
	if m.Commit = git("rev-parse", "--short", "HEAD"); m.Commit != "" &&
		git("status", "--porcelain") != "" {
		m.Commit += "+"
	}
	return m
}

func field(path, name string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(b)) {
		if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == name {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

func (m Machine) String() string {
	s := fmt.Sprintf("%s, %d cores, %s; %s; %s", m.CPU, m.Cores, m.Memory, m.OS, m.Go)
	if m.Redis != "" {
		s += "; Redis " + m.Redis
	}
	if m.Etcd != "" {
		s += "; etcd " + m.Etcd
	}
	if m.Maria != "" {
		s += "; MariaDB " + m.Maria
	}
	if m.Postgres != "" {
		s += "; PostgreSQL " + m.Postgres
	}
	if m.Commit != "" {
		s += "; commit " + m.Commit
	}
	return s + "; load before it " + m.Load + "."
}
