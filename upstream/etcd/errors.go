package etcd

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/locksidecar/locksidecar/upstream"
)

var (
	// ErrConfig says that a store URL is not well-formed.
	ErrConfig = errors.New("etcd store URL")
	// ErrServer says that a server was reached that must not be used for locks.
	ErrServer = errors.New("etcd server cannot be used")
	// ErrSession says that there is no session at the store just now.
	ErrSession = errors.New("no session at etcd")
	// ErrRefused says that etcd, or this driver, would not do what was asked.
	ErrRefused = errors.New("etcd refused")
	// ErrNoAnswer says that an answer did not come: what was asked for may have
	// happened.
	ErrNoAnswer = errors.New("no answer from etcd")
	// ErrNothingSent says that no connection could be had, so that nothing was
	// asked.
	ErrNothingSent = errors.New("no connection to etcd")
)

// is says whether err is that error of etcd's.
func is(err, want error) bool {
	s, ok := errors.AsType[interface {
		error
		GRPCStatus() *status.Status
	}](err)
	return ok && s.GRPCStatus().Message() == rpctypes.ErrorDesc(want)
}

// nothingDone are the errors with which etcd turns a request down before it has
// changed anything. ErrGRPCNoSpace is not among them: a server that finds out only
// while it applies a transaction says so after having applied it.
var nothingDone = []error{
	rpctypes.ErrGRPCTooManyOps, rpctypes.ErrGRPCRequestTooLarge, rpctypes.ErrGRPCRequestTooManyRequests,
	rpctypes.ErrGRPCLeaseNotFound, rpctypes.ErrGRPCEmptyKey, rpctypes.ErrGRPCDuplicateKey,
	rpctypes.ErrGRPCInvalidAuthToken, rpctypes.ErrGRPCAuthOldRevision, rpctypes.ErrGRPCUserEmpty,
	rpctypes.ErrGRPCAuthFailed, rpctypes.ErrGRPCPermissionDenied, rpctypes.ErrGRPCNoLeader,
	rpctypes.ErrGRPCNotCapable, rpctypes.ErrGRPCNotSupportedForLearner, rpctypes.ErrGRPCCorrupt,
}

// refused says whether an error proves that nothing was done, whatever was sent.
func refused(err error) bool {
	for _, e := range nothingDone {
		if is(err, e) {
			return true
		}
	}
	// What is no etcd knows no such method.
	return status.Code(err) == codes.Unimplemented || tooLarge(err)
}

// tooLarge says that a request was turned down for its size, by etcd or already
// by its gRPC, which names no error of etcd's.
func tooLarge(err error) bool {
	return is(err, rpctypes.ErrGRPCRequestTooLarge) ||
		status.Code(err) == codes.ResourceExhausted && strings.Contains(err.Error(), "larger than max")
}

// down says whether an error means that the store as a whole cannot be reached or
// cannot write.
func down(err error) bool {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) || errors.Is(err, errLogin) || errors.Is(err, ErrSession) {
		return true
	}
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Internal, codes.Unknown, codes.DataLoss, codes.Unimplemented:
		return true
	}
	return is(err, rpctypes.ErrGRPCUserEmpty) || is(err, rpctypes.ErrGRPCInvalidAuthToken)
}

// explain makes an error of etcd, or of connecting to it, one for people: it names
// the store and the setting to look at.
func (c *Config) explain(what error, err error) error {
	err = fmt.Errorf("%w at %s: %w%s", what, c.addr(), err, c.advice(err))
	if down(err) && !errors.Is(err, upstream.ErrDown) {
		return fmt.Errorf("%w: %w", upstream.ErrDown, err)
	}
	return err
}

// plain takes gRPC's wrapping off.
func plain(err error) error {
	if s, ok := status.FromError(err); ok && errors.Unwrap(err) == nil {
		return statusError{s}
	}
	return err
}

// statusError prints only what the status says.
type statusError struct{ s *status.Status }

func (e statusError) Error() string              { return e.s.Message() }
func (e statusError) GRPCStatus() *status.Status { return e.s }

// advice is what to look at.
func (c *Config) advice(err error) string {
	msg := err.Error()
	has := func(parts ...string) bool {
		for _, p := range parts {
			if strings.Contains(msg, p) {
				return true
			}
		}
		return false
	}
	switch {
	case errors.Is(err, errLogin), is(err, rpctypes.ErrGRPCAuthFailed):
		return " (look at the store URL's user and password, or password_file=)"
	case is(err, rpctypes.ErrGRPCUserEmpty):
		return " (the server asks for a user: put user:password@ into the store URL, or use password_file=)"
	case is(err, rpctypes.ErrGRPCPermissionDenied):
		return fmt.Sprintf(" (the user needs a role with readwrite on the prefix: etcdctl role grant-permission ROLE --prefix=true readwrite %s/)", c.Prefix)
	case is(err, rpctypes.ErrGRPCTooManyOps):
		return fmt.Sprintf(" (look at the server's --max-txn-ops: at least %d is needed)", 2*depth)
	case tooLarge(err):
		return " (look at the server's --max-request-bytes, or take shorter names)"
	case is(err, rpctypes.ErrGRPCNoSpace):
		return " (the server's database is full: raise --quota-backend-bytes or compact and defragment, then etcdctl alarm disarm)"
	case has("certificate signed by unknown authority", "certificate is not trusted"):
		return " (look at ca= in the store URL: it does not vouch for the server's certificate)"
	case has("certificate is valid for", "certificate is not valid for", "doesn't contain any IP SANs", "cannot validate certificate"):
		return " (the server's certificate is for another name: look at the host, or server_name=, in the store URL)"
	case has("certificate required", "bad certificate", "unknown certificate authority"):
		return " (the server asks for a client certificate that it trusts: look at cert= and key= in the store URL)"
	case has("certificate has expired"):
		return " (look at the server's certificate and at this machine's clock)"
	case has("first record does not look like a TLS handshake", "handshake failed: EOF"):
		return " (the server speaks no TLS: take tls=true, with ca= and the like, out of the store URL)"
	case c.url.TLS.On && has("error reading server preface", "broken pipe", "connection reset by peer"):
		// Some servers just hang up on who has no certificate.
		return " (if it has never worked: look at cert= and key= in the store URL, and whether it is an etcd at all)"
	case has("error reading server preface"):
		return " (it may want TLS: tls=true in the store URL; or it is no etcd)"
	case status.Code(err) == codes.Unimplemented:
		return " (it is no etcd v3: look at the host and port in the store URL)"
	}
	return ""
}
