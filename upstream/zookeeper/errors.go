package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-zookeeper/zk"

	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/driverkit"
)

// The driver's own errors: see package driverkit.
var ErrConfig, ErrServer, _, ErrNoAnswer, ErrRefused = driverkit.Errors("zookeeper")

// ErrNothingSent means that there was no connection or no store session, so the request was not
// sent.
var ErrNothingSent = errors.New("no session at zookeeper")

// errNoNode is the answer that a node does not exist.
var errNoNode = zk.ErrNoNode

// answers has the errors that a server sends as an answer to a request.
var answers = []error{zk.ErrNoNode, zk.ErrNoAuth, zk.ErrBadVersion, zk.ErrNoChildrenForEphemerals,
	zk.ErrNodeExists, zk.ErrNotEmpty, zk.ErrInvalidACL, zk.ErrAuthFailed, zk.ErrSessionMoved,
	zk.ErrBadArguments, zk.ErrInvalidPath}

// outcome returns the effect of a request that ended with err. The library has no type for errors
// that the server sent, only values. A server whose session has expired has done nothing.
func outcome(err error) driverkit.Outcome {
	switch {
	case err == nil:
		return driverkit.Done
	case errors.Is(err, ErrNothingSent), errors.Is(err, zk.ErrNoServer),
		errors.Is(err, zk.ErrSessionExpired):
		return driverkit.NothingSent
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return driverkit.Unknown
	}
	if slices.ContainsFunc(answers, func(a error) bool { return errors.Is(err, a) }) ||
		unimplemented(err) || strings.HasPrefix(err.Error(), "unknown error: -") && !systemError(err) {
		return driverkit.Refused
	}
	return driverkit.Unknown
}

// unimplemented reports whether the server does not know the operation. The library has no value
// for its code.
func unimplemented(err error) bool { return err.Error() == "unknown error: -6" }

// systemError reports whether err has a code between 0 and -100, which does not prove that nothing
// was done.
func systemError(err error) bool { return len(err.Error()) < len("unknown error: -100") }

// explain adds the store and advice to an error. The result is ErrDown if it means that the store
// as a whole is unavailable.
func (c *Config) explain(err error) error {
	switch outcome(err) {
	case driverkit.Done:
		return nil
	case driverkit.NothingSent:
		if errors.Is(err, ErrNothingSent) {
			return err
		}
		return fmt.Errorf("%w: %w, %s: %w", upstream.ErrDown, ErrNothingSent, c.where(), err)
	case driverkit.Unknown:
		return fmt.Errorf("%w: %w, %s: %w", upstream.ErrDown, ErrNoAnswer, c.where(), err)
	}
	return fmt.Errorf("%w, %s: %w", ErrRefused, c.where(), c.advice(err))
}

// advice adds the settings to check to an error.
func (c *Config) advice(err error) error {
	switch {
	case errors.Is(err, zk.ErrNoAuth):
		return fmt.Errorf("%w (the store URL's user and password, or password_file=, "+
			"need the rights to read, create and delete under %q)", err, c.Chroot+"/")
	case errors.Is(err, zk.ErrInvalidACL), errors.Is(err, zk.ErrAuthFailed):
		return fmt.Errorf("%w (look at the store URL's user and password, password_file= and "+
			"acl=)", err)
	case err.Error() == "unknown error: -124":
		return fmt.Errorf("%w (the server wants a login that this client lacks, such as SASL)", err)
	case unimplemented(err):
		return fmt.Errorf("%w (container nodes need ZooKeeper 3.5.3 or later)", err)
	}
	return err
}
