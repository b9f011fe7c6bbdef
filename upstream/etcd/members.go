package etcd

import (
	"context"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/locksidecar/locksidecar/upstream/driverkit"
)

// avoidFor is how long a member that has not answered gets no requests, if there are others. A
// frozen member keeps its connections, and gRPC would send requests to it until its own probe
// fails.
const avoidFor = 5 * time.Second

// members knows which of the endpoints answer.
type members struct {
	set func(endpoints ...string) // hands the endpoints to use to gRPC

	mu      sync.Mutex
	all     []string             // as gRPC has them; guarded by mu, as are the fields below
	addr    map[string]string    // the endpoint by its address, without the scheme
	remote  map[string]string    // the endpoint by the remote address of a connection
	avoided map[string]time.Time // and until when
}

func newMembers(endpoints []string, scheme string) *members {
	m := &members{
		addr: map[string]string{}, remote: map[string]string{}, avoided: map[string]time.Time{},
	}
	for _, e := range endpoints {
		m.all = append(m.all, scheme+e)
		m.addr[e] = scheme + e
	}
	return m
}

// dial connects to addr, and remembers the remote address.
func (m *members) dial(ctx context.Context, addr string) (net.Conn, error) {
	c, err := driverkit.Dial(ctx, new(net.Dialer), "tcp", addr, nil)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	m.remote[c.RemoteAddr().String()] = m.addr[addr]
	m.mu.Unlock()
	return c, nil
}

// observe is gRPC's interceptor. It notices the members that do not answer.
func (m *members) observe(
	ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker,
	opts ...grpc.CallOption,
) error {
	m.restore()
	var p peer.Peer
	err := invoke(ctx, method, req, reply, cc, append(opts, grpc.Peer(&p))...)
	if status.Code(err) == codes.DeadlineExceeded && p.Addr != nil {
		m.avoid(p.Addr.String())
	}
	return err
}

// avoid stops requests to the member at a remote address. If all members are avoided, only this one
// stays avoided, because it was found unresponsive last.
func (m *members) avoid(remote string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.remote[remote]
	if e == "" || len(m.all) == 1 {
		return
	}
	m.avoided[e] = time.Now().Add(avoidFor)
	if len(m.avoided) == len(m.all) {
		m.avoided = map[string]time.Time{e: m.avoided[e]}
	}
	m.useLocked()
}

// restore uses members again whose time has passed.
func (m *members) restore() {
	m.mu.Lock()
	defer m.mu.Unlock()
	before := len(m.avoided)
	for e, until := range m.avoided {
		if time.Now().After(until) {
			delete(m.avoided, e)
		}
	}
	if len(m.avoided) < before {
		m.useLocked()
	}
}

func (m *members) useLocked() {
	var use []string
	for _, e := range m.all {
		if _, no := m.avoided[e]; !no {
			use = append(use, e)
		}
	}
	m.set(use...)
}
