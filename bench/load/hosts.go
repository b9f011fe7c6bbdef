package load

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/locksidecar/locksidecar/bench/harness"
	"github.com/locksidecar/locksidecar/protocol"
)

// HostsArgs say which keys the callers of many hosts acquire, all in one process. Caller c is on
// the host with the number c modulo the number of hosts. Callers is the number of callers of each
// host. Each caller pauses between two turns.
type HostsArgs struct {
	AffineArgs
	Pause time.Duration // the average
}

// hosts is work with a connection to each host. Every wait ends with a grant or an error, so a
// request that is in flight at the end of the window continues until then.
type hosts struct {
	work
	of HostsArgs
}

// NewHosts returns the load of HostsArgs.
func NewHosts() harness.Load { return &hosts{work: work{open: OpenSidecar}} }

func (h *hosts) Open(spec *harness.Spec) (int, error) {
	err := json.Unmarshal(spec.Args, &h.of)
	if err != nil {
		return 0, err
	}
	h.args = h.of.WorkArgs
	h.first = 1
	if h.board, err = openBoard(h.args.Board, h.args.Keys); err != nil {
		return 0, err
	}
	many := &sidecars{}
	h.locker, h.fenced = many, many
	for _, addr := range h.of.Hosts {
		args := h.args.PairsArgs
		args.Addr = addr
		c, err := OpenSidecar(&args)
		if err != nil {
			return 0, errors.Join(err, many.Close())
		}
		many.hosts = append(many.hosts, c.(FencedLocker))
	}
	return h.args.Callers * len(h.of.Hosts), nil
}

func (h *hosts) Run(_ context.Context, caller int, rec *harness.Rec) error {
	rnd := rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	w := h.work
	w.pick = h.of.pick(caller % len(h.of.Hosts))
	for {
		time.Sleep(time.Duration(rnd.Int64N(int64(2 * h.of.Pause))))
		if rec.Stopped() {
			return nil
		}
		if err := w.wanted(context.Background(), caller, rnd, rec); err != nil {
			rec.Err(err)
		}
	}
}

// sidecars has a connection to each of several daemons.
type sidecars struct{ hosts []FencedLocker }

func (s *sidecars) of(caller int) FencedLocker { return s.hosts[caller%len(s.hosts)] }

func (s *sidecars) Lock(ctx context.Context, caller int,
	key string) (func(context.Context) error, error) {
	return s.of(caller).Lock(ctx, caller, key)
}

func (s *sidecars) LockFenced(ctx context.Context, caller int, key string,
	mode protocol.Mode) (uint64, func(context.Context) error, error) {
	return s.of(caller).LockFenced(ctx, caller, key, mode)
}

func (s *sidecars) Close() (err error) {
	for _, c := range s.hosts {
		err = errors.Join(err, c.Close())
	}
	return err
}
