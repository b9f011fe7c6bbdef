package scenario

import (
	"cmp"
	"context"
	"errors"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// The streams that a daemon has at etcd, without the daemon.

// keeping is a lease with a stream of its keep-alives.
type keeping struct {
	lease  clientv3.LeaseID
	stream pb.Lease_LeaseKeepAliveClient
}

func newKeeping(ctx context.Context, c *clientv3.Client) (*keeping, error) {
	l, err := c.Grant(ctx, int64(unitsLong.Seconds()))
	if err != nil {
		return nil, err
	}
	s, err := pb.NewLeaseClient(c.ActiveConnection()).LeaseKeepAlive(ctx)
	return &keeping{l.ID, s}, err
}

// again keeps the lease alive once.
func (k *keeping) again() error {
	if err := k.stream.Send(&pb.LeaseKeepAliveRequest{ID: int64(k.lease)}); err != nil {
		return err
	}
	_, err := k.stream.Recv()
	return err
}

// watching is a stream of watches.
type watching struct {
	stream pb.Watch_WatchClient
	last   int64
}

// newWatching creates a stream, and watches all keys below dir, which ends in a slash.
func newWatching(ctx context.Context, c *clientv3.Client, dir string) (*watching, error) {
	s, err := pb.NewWatchClient(c.ActiveConnection()).Watch(ctx)
	if err != nil {
		return nil, err
	}
	w := &watching{stream: s}
	return w, w.begin(dir)
}

// begin watches all keys below each of dirs.
func (w *watching) begin(dirs ...string) error {
	for _, dir := range dirs {
		w.last++
		if err := w.stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: &pb.WatchCreateRequest{
			WatchId: w.last, Key: []byte(dir), RangeEnd: []byte(dir[:len(dir)-1] + "0")}}}); err != nil {
			return err
		}
	}
	for range dirs {
		if r, err := w.stream.Recv(); err != nil || r.Canceled {
			return cmp.Or(err, errNoWatch)
		}
	}
	return nil
}

var errNoWatch = errors.New("etcd has refused a watch")

// end ends the last n watches.
func (w *watching) end(n int) error {
	for i := range int64(n) {
		if err := w.stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CancelRequest{
			CancelRequest: &pb.WatchCancelRequest{WatchId: w.last - i}}}); err != nil {
			return err
		}
	}
	for range n {
		if _, err := w.stream.Recv(); err != nil {
			return err
		}
	}
	return nil
}
