package etcd

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/locksidecar/locksidecar/upstream/driverkit"
)

// The driver's own errors: see package driverkit.
var ErrConfig, ErrServer, ErrNothingSent, ErrNoAnswer, ErrRefused = driverkit.Errors("etcd")

// ErrSession means that there is no store session now.
var ErrSession = errors.New("no session at etcd")

// is reports whether err is that error of etcd's.
func is(err, want error) bool {
	s, ok := errors.AsType[interface {
		error
		GRPCStatus() *status.Status
	}](err)
	return ok && s.GRPCStatus().Message() == rpctypes.ErrorDesc(want)
}

// nothingDone are the errors with which etcd refuses a request before it has changed anything.
// ErrGRPCNoSpace is not among them: a server that runs out of space while it applies a transaction
// reports it after having applied the transaction.
var nothingDone = []error{
	rpctypes.ErrGRPCTooManyOps, rpctypes.ErrGRPCRequestTooLarge,
	rpctypes.ErrGRPCRequestTooManyRequests, rpctypes.ErrGRPCLeaseNotFound, rpctypes.ErrGRPCEmptyKey,
	rpctypes.ErrGRPCDuplicateKey,
	rpctypes.ErrGRPCInvalidAuthToken, rpctypes.ErrGRPCAuthOldRevision, rpctypes.ErrGRPCUserEmpty,
	rpctypes.ErrGRPCAuthFailed, rpctypes.ErrGRPCPermissionDenied, rpctypes.ErrGRPCNoLeader,
	rpctypes.ErrGRPCNotCapable, rpctypes.ErrGRPCNotSupportedForLearner, rpctypes.ErrGRPCCorrupt,
}

// refused reports whether an error proves that nothing was done, whatever was sent.
func refused(err error) bool {
	for _, e := range nothingDone {
		if is(err, e) {
			return true
		}
	}
	// A server that is not etcd does not have the method.
	return status.Code(err) == codes.Unimplemented || tooLarge(err)
}

// tooLarge reports whether a request was refused for its size, by etcd or by its gRPC, which names
// no error of etcd's.
func tooLarge(err error) bool {
	return is(err, rpctypes.ErrGRPCRequestTooLarge) ||
		status.Code(err) == codes.ResourceExhausted && strings.Contains(err.Error(), "larger than max")
}

// down reports whether an error means that the store as a whole cannot be reached or cannot write.
func down(err error) bool {
	for _, e := range []error{context.DeadlineExceeded, context.Canceled, errLogin, ErrSession} {
		if errors.Is(err, e) {
			return true
		}
	}
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Internal, codes.Unknown,
		codes.DataLoss, codes.Unimplemented:
		return true
	}
	return is(err, rpctypes.ErrGRPCUserEmpty) || is(err, rpctypes.ErrGRPCInvalidAuthToken)
}

// explain adds to an error of etcd, or of connecting to it, the store and the setting to check.
func (c *Config) explain(what error, err error) error {
	err = fmt.Errorf("%w at %s: %w%s", what, c.addr(), err, c.advice(err))
	if down(err) {
		return driverkit.Down(err)
	}
	return err
}

// plain removes gRPC's wrapping.
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

// advice names the setting to check.
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
		return " (the server asks for a user: put user:password@ into the store URL, " +
			"or use password_file=)"
	case is(err, rpctypes.ErrGRPCPermissionDenied):
		return fmt.Sprintf(" (the user needs a role with readwrite on the prefix: "+
			"etcdctl role grant-permission ROLE --prefix=true readwrite %s/)", c.Prefix)
	case is(err, rpctypes.ErrGRPCTooManyOps):
		return fmt.Sprintf(" (look at the server's --max-txn-ops: at least %d is needed)", 2*depth)
	case tooLarge(err):
		return " (look at the server's --max-request-bytes, or take shorter names)"
	case is(err, rpctypes.ErrGRPCNoSpace):
		return " (the server's database is full: raise --quota-backend-bytes or compact and " +
			"defragment, then etcdctl alarm disarm)"
	case driverkit.TLSAdvice(err) != "":
		return driverkit.TLSAdvice(err)
	case c.url.TLS.On && has(
		"error reading server preface", "broken pipe", "connection reset by peer"):
		// Some servers just close the connection of a client without a certificate.
		return " (if it has never worked: look at cert= and key= in the store URL, " +
			"and whether it is an etcd at all)"
	case has("error reading server preface"):
		return " (it may want TLS: tls=true in the store URL; or it is no etcd)"
	case status.Code(err) == codes.Unimplemented:
		return " (it is no etcd v3: look at the host and port in the store URL)"
	}
	return ""
}
