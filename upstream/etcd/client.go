package etcd

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/stats"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// gRPC probes a connection with calls in flight after pingAfter of silence, and an idle one at the
// next call. etcd cuts off clients that probe more often than every 5 s, or without any call.
const (
	pingAfter   = 6 * time.Second
	pingTimeout = 2 * time.Second
)

var errLogin = errors.New("cannot log in")

// client has the connections to the members, and makes the calls over them. It adds to etcd's
// client whether a call was sent at all, a login that does not delay its creation, and a password
// that may change.
type client struct {
	cfg   *Config
	cl    *clientv3.Client
	kv    pb.KVClient
	lease pb.LeaseClient
	watch pb.WatchClient
	maint pb.MaintenanceClient
	auth  pb.AuthClient

	open  atomic.Int64 // connections
	login sync.Mutex   // held across a login, so that there is one at a time
	token struct {
		sync.Mutex
		value string
		known bool // a login has set value, which is empty if the server requires none
	}
}

// newClient returns a client, which connects in the background. It returns an error if a file that
// cfg names cannot be read.
func newClient(cfg *Config) (*client, error) {
	c := &client{cfg: cfg}
	t, err := cfg.url.ReadFiles("")
	if err != nil {
		return nil, err
	}
	scheme := "http://"
	if t != nil {
		scheme = "https://"
	}
	m := newMembers(cfg.Endpoints, scheme)
	options := []grpc.DialOption{
		grpc.WithContextDialer(m.dial),
		grpc.WithChainUnaryInterceptor(m.observe),
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: cfg.Timeout,
			Backoff: backoff.Config{
				BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second}}),
		grpc.WithStatsHandler(callHandler{&c.open}),
		grpc.WithPerRPCCredentials(c),
		grpc.WithUserAgent("locksidecar"),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32)),
	}
	// gRPC ignores the ServerName of a tls.Config.
	if name := cfg.url.TLS.ServerName; name != "" {
		options = append(options, grpc.WithAuthority(name))
	}
	cl, err := clientv3.New(clientv3.Config{
		Endpoints: m.all, TLS: t, Logger: zap.NewNop(),
		DialKeepAliveTime: pingAfter, DialKeepAliveTimeout: pingTimeout,
		MaxUnaryRetries: 1, // only the callers repeat calls
		DialOptions:     options,
	})
	if err != nil {
		return nil, err
	}
	m.set = cl.SetEndpoints
	conn := cl.ActiveConnection()
	c.cl, c.kv, c.lease = cl, pb.NewKVClient(conn), pb.NewLeaseClient(conn)
	c.watch, c.maint = pb.NewWatchClient(conn), pb.NewMaintenanceClient(conn)
	c.auth = pb.NewAuthClient(conn)
	return c, nil
}

func (c *client) close() error {
	if err := c.cl.Close(); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// sent is set once a part of a call has been sent to the server. Before that, the server has done
// nothing, whatever the error.
type sent struct{ yes bool }

type sentKey struct{}

// callHandler sets sent and counts connections. gRPC calls HandleRPC on the call's own goroutine.
type callHandler struct{ open *atomic.Int64 }

func (callHandler) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// HandleRPC sets sent.
func (callHandler) HandleRPC(ctx context.Context, s stats.RPCStats) {
	if _, ok := s.(*stats.OutHeader); ok {
		if x, ok := ctx.Value(sentKey{}).(*sent); ok {
			x.yes = true
		}
	}
}
func (callHandler) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn counts connections.
func (h callHandler) HandleConn(_ context.Context, s stats.ConnStats) {
	switch s.(type) {
	case *stats.ConnBegin:
		h.open.Add(1)
	case *stats.ConnEnd:
		h.open.Add(-1)
	}
}

// GetRequestMetadata adds the token to each call.
func (c *client) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	c.token.Lock()
	defer c.token.Unlock()
	if c.token.value == "" {
		return nil, nil
	}
	return map[string]string{rpctypes.TokenFieldNameGRPC: c.token.value}, nil
}

// RequireTransportSecurity says that a token may go over a plain connection.
func (c *client) RequireTransportSecurity() bool { return false }

// ensureToken logs in if that has not been done yet.
func (c *client) ensureToken(ctx context.Context) error {
	if c.cfg.url.User == "" {
		return nil
	}
	_, known := c.current()
	if known {
		return nil
	}
	return c.relogin(ctx, "")
}

func (c *client) current() (value string, known bool) {
	c.token.Lock()
	defer c.token.Unlock()
	return c.token.value, c.token.known
}

// relogin gets a new token, unless another call has replaced used.
func (c *client) relogin(ctx context.Context, used string) error {
	c.login.Lock()
	defer c.login.Unlock()
	if v, known := c.current(); known && v != used {
		return nil
	}
	user, password, err := c.cfg.url.Credentials()
	if err != nil {
		return fmt.Errorf("%w: %w", errLogin, err)
	}
	r, err := c.auth.Authenticate(ctx, &pb.AuthenticateRequest{Name: user, Password: password})
	switch {
	case err == nil:
	case is(err, rpctypes.ErrGRPCAuthNotEnabled):
		r = &pb.AuthenticateResponse{}
	case is(err, rpctypes.ErrGRPCAuthFailed):
		return fmt.Errorf("%w: %w", errLogin, plain(err))
	default:
		return plain(err)
	}
	c.token.Lock()
	c.token.value, c.token.known = r.Token, true
	c.token.Unlock()
	return nil
}

// call makes one call. It repeats the call with a new token if the server has rejected the old one,
// which the server does before it does anything else. asked reports whether the server may have
// carried out the call.
func (c *client) call(ctx context.Context, f func(context.Context) error) (asked bool, err error) {
	for again := false; ; again = true {
		if err := c.ensureToken(ctx); err != nil {
			return false, err
		}
		used, _ := c.current()
		s := new(sent)
		err := f(context.WithValue(ctx, sentKey{}, s))
		if err == nil {
			return true, nil
		}
		if again || !c.tokenIsOld(err) {
			return s.yes && !refused(err), plain(err)
		}
		if err := c.relogin(ctx, used); err != nil {
			return false, err
		}
	}
}

// tokenIsOld reports whether a new token may help.
func (c *client) tokenIsOld(err error) bool {
	return c.cfg.url.User != "" && (is(err, rpctypes.ErrGRPCInvalidAuthToken) ||
		is(err, rpctypes.ErrGRPCAuthOldRevision) || is(err, rpctypes.ErrGRPCUserEmpty))
}
