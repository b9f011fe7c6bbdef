package etcd

import (
	"context"
	"errors"
	"testing"
	"time"

	"google.golang.org/grpc"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// strangeMember is a member that does not know the lease at first, and whose reads fail meanwhile.
type strangeMember struct {
	pb.LeaseClient
	pb.KVClient
	pb.Lease_LeaseKeepAliveClient
	answers int
	last    func() // called with the answer that knows the lease
}

func (m *strangeMember) LeaseKeepAlive(
	context.Context, ...grpc.CallOption,
) (pb.Lease_LeaseKeepAliveClient, error) {
	return m, nil
}

func (m *strangeMember) Send(*pb.LeaseKeepAliveRequest) error { return nil }

func (m *strangeMember) Recv() (*pb.LeaseKeepAliveResponse, error) {
	r := &pb.LeaseKeepAliveResponse{Header: &pb.ResponseHeader{}}
	if m.answers++; m.answers > 1 {
		r.TTL = 60
		m.last()
	}
	return r, nil
}

func (m *strangeMember) Range(
	context.Context, *pb.RangeRequest, ...grpc.CallOption,
) (*pb.RangeResponse, error) {
	return nil, errors.New("no leader")
}

// A new leader may not know a lease that exists. The read that would tell fails as long as the
// change of the leader takes. That proves nothing about the lease.
func TestAFailedReadDoesNotEndTheSession(t *testing.T) {
	t.Parallel()
	cfg, err := Parse("etcd://127.0.0.1:1")
	if err != nil {
		t.Fatal(err)
	}
	s, err := newStore(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer s.client.close()
	ctx, cancel := context.WithCancel(t.Context())
	m := &strangeMember{last: cancel}
	s.client.lease, s.client.kv = m, m
	n := &session{lease: 1, key: "key"}
	n.until.Store(s.clock() + int64(time.Hour))
	s.granted.Store(int64(time.Second))
	s.wake()
	if err := s.keepAlive(ctx, n); !errors.Is(err, context.Canceled) || n.gone.Load() {
		t.Errorf("the session ends: %v; the lease counts as gone: %v", err, n.gone.Load())
	}
}
