package harness

import (
	"context"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// Etcd is a private etcd of one member. As in etcd's default settings, it waits for the disk before
// it answers.
type Etcd struct {
	*Process
	Addr    string // "127.0.0.1:port"
	Version string
}

// BuildEtcd compiles the etcd of the tests' nested module, in the source directory root, to the
// program out. The first time, that takes minutes.
func BuildEtcd(ctx context.Context, root, out string) error {
	return Build(ctx, filepath.Join(root, "upstream", "testserver", "etcdserver"), ".",
		out, "-trimpath")
}

// StartEtcd starts the program bin on free ports of the loopback interface. Its data is in dir.
func StartEtcd(bin, dir string) (*Etcd, error) {
	client, err := freeAddr()
	if err != nil {
		return nil, err
	}
	peer, err := freeAddr()
	if err != nil {
		return nil, err
	}
	said, err := exec.Command(bin, "--version").Output()
	if err != nil {
		return nil, fmt.Errorf("ask etcd for its version: %w", err)
	}
	version, _, _ := strings.Cut(strings.TrimPrefix(string(said), "etcd Version: "), "\n")
	p, err := StartProcess(bin, "--data-dir", filepath.Join(dir, "etcd"), "--log-level", "error",
		"--listen-client-urls", "http://"+client, "--advertise-client-urls", "http://"+client,
		"--listen-peer-urls", "http://"+peer, "--initial-advertise-peer-urls", "http://"+peer,
		"--initial-cluster", "default=http://"+peer,
		"--quota-backend-bytes", "8589934592") // room for the revisions of a long run
	if err != nil {
		return nil, err
	}
	ask := http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	return &Etcd{p, client, version}, p.await(func() error {
		r, err := ask.Get("http://" + client + "/health")
		if err != nil {
			return err
		}
		r.Body.Close()
		if r.StatusCode != http.StatusOK {
			return fmt.Errorf("its health is %s", r.Status)
		}
		return nil
	})
}
