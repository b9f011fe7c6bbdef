package load

import (
	"encoding/json"
	"math/rand/v2"

	"github.com/locksidecar/locksidecar/bench/harness"
)

// AffineArgs say which keys the processes of several hosts acquire. Key i belongs to the host with
// the number i modulo the number of hosts, which acquires it most often.
type AffineArgs struct {
	WorkArgs
	Hosts []string // Addr of each host; process p is on host p modulo their number
	Own   int      // how many of a thousand acquires are for keys of the process's own host
}

type affine struct {
	work
	of   AffineArgs
	host int
}

// NewAffine returns the load of AffineArgs, which uses the lockers of open. Acquires of other
// hosts' keys are also counted separately.
func NewAffine(open func(*PairsArgs) (Locker, error)) func() harness.Load {
	return func() harness.Load { return &affine{work: work{open: open}} }
}

func (a *affine) Open(spec *harness.Spec) (int, error) {
	if err := json.Unmarshal(spec.Args, &a.of); err != nil {
		return 0, err
	}
	a.host = spec.Proc % len(a.of.Hosts)
	a.of.Addr = a.of.Hosts[a.host]
	here := *spec
	var err error
	if here.Args, err = json.Marshal(a.of.WorkArgs); err != nil {
		return 0, err
	}
	callers, err := a.work.Open(&here)
	a.pick = a.of.pick(a.host)
	return callers, err
}

// pick returns a function that draws a key as processes of a host do.
func (a *AffineArgs) pick(here int) func(rnd *rand.Rand) (slot int, apart bool) {
	hosts := len(a.Hosts)
	return func(rnd *rand.Rand) (int, bool) {
		host, apart := here, rnd.IntN(1000) >= a.Own
		if apart {
			host = (host + 1 + rnd.IntN(hosts-1)) % hosts
		}
		return host + hosts*rnd.IntN(a.Keys/hosts), apart
	}
}
