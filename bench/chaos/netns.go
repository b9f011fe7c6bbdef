package chaos

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"
)

// namespace is a network namespace of one daemon, with one line to the network of this program.
type namespace struct{ name, veth, outer string }

// noNamespaces returns the reason why network namespaces are not available, or "".
func noNamespaces() string {
	if os.Getuid() != 0 {
		return "network namespaces need root"
	}
	if _, err := exec.LookPath("ip"); err != nil {
		return "network namespaces need ip (iproute2)"
	}
	n, err := newNamespace(9)
	if err != nil {
		return err.Error()
	}
	n.remove()
	return ""
}

func ip(words string) error {
	out, err := exec.Command("ip", strings.Fields(words)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("ip %s: %w: %s", words, err, out)
	}
	return nil
}

func newNamespace(no int) (*namespace, error) {
	pid := os.Getpid()
	n := &namespace{name: fmt.Sprintf("chaos%d-%d", pid, no), veth: fmt.Sprintf("ch%d-%d", pid, no)}
	net := fmt.Sprintf("169.254.%d.", 1+pid%250)
	n.outer = fmt.Sprint(net, 4*no+1)
	for _, words := range []string{
		"netns add " + n.name,
		"link add " + n.veth + " type veth peer name up netns " + n.name,
		"addr add " + n.outer + "/30 dev " + n.veth,
		"link set " + n.veth + " up",
		"-n " + n.name + " addr add " + fmt.Sprint(net, 4*no+2) + "/30 dev up",
		"-n " + n.name + " link set dev up up",
		"-n " + n.name + " link set dev lo up",
	} {
		if err := ip(words); err != nil {
			n.remove()
			return nil, err
		}
	}
	return n, nil
}

// inside returns the words that run a program in the namespace.
func (n *namespace) inside() []string { return []string{"ip", "netns", "exec", n.name} }

// remove removes the namespace and its line.
func (n *namespace) remove() {
	_ = ip("link del " + n.veth)
	_ = ip("netns del " + n.name)
}

// partition takes down the lines of some daemons for d.
func (c *cell) partition(d time.Duration, hosts ...*host) {
	set := func(state string) {
		for _, h := range hosts {
			if err := ip("link set " + c.spaces[h.no].veth + " " + state); err != nil {
				panic(broken{err})
			}
		}
	}
	set("down")
	c.last(d)
	set("up")
}
