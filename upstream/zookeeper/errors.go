package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/go-zookeeper/zk"

	"github.com/locksidecar/locksidecar/upstream"
)

var (
	// ErrConfig says that a store URL is not well-formed.
	ErrConfig = errors.New("zookeeper store URL")
	// ErrServer says that a server was reached that cannot be used for locks.
	ErrServer = errors.New("zookeeper server cannot be used")
	// ErrNothingSent says that there is no connection or no session, so that
	// nothing was asked of the servers.
	ErrNothingSent = errors.New("no session at zookeeper")
	// ErrNoAnswer says that an answer did not come: what was asked for may have
	// happened.
	ErrNoAnswer = errors.New("no answer from zookeeper")
	// ErrRefused says that the server answered that it would not.
	ErrRefused = errors.New("zookeeper refused")
)

// errGone is an answer: the node is not there.
var errGone = zk.ErrNoNode

// verdict is what an error says of a request.
type verdict uint8

const (
	fine     verdict = iota
	unsent           // it never left this process
	refused          // the server answered that it would not
	unknown          // no answer
	noLonger         // the session is over at the server, and nothing was done
)

// answers are the errors that the server sends as its answer to one request.
var answers = []error{zk.ErrNoNode, zk.ErrNoAuth, zk.ErrBadVersion, zk.ErrNoChildrenForEphemerals, zk.ErrNodeExists, zk.ErrNotEmpty,
	zk.ErrInvalidACL, zk.ErrAuthFailed, zk.ErrSessionMoved, zk.ErrBadArguments, zk.ErrInvalidPath}

// judge says what err means. The library has no type for errors that the server
// sent, only values.
func judge(err error) verdict {
	switch {
	case err == nil:
		return fine
	case errors.Is(err, ErrNothingSent), errors.Is(err, zk.ErrNoServer):
		return unsent
	case errors.Is(err, zk.ErrSessionExpired):
		return noLonger
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return unknown
	}
	for _, a := range answers {
		if errors.Is(err, a) {
			return refused
		}
	}
	if unimplemented(err) || strings.HasPrefix(err.Error(), "unknown error: -") && !systemError(err) {
		return refused
	}
	return unknown
}

// The library prints codes that it does not know.
func unimplemented(err error) bool { return err.Error() == "unknown error: -6" }

// systemError says that a code (between 0 and -100) does not prove that nothing
// was done.
func systemError(err error) bool { return len(err.Error()) < len("unknown error: -100") }

// explain makes err one for people. It is ErrDown when it says that the store as a
// whole cannot be had.
func (c *Config) explain(err error) error {
	switch judge(err) {
	case fine:
		return nil
	case unsent:
		if errors.Is(err, ErrNothingSent) {
			return err
		}
		return fmt.Errorf("%w: %w, %s: %w", upstream.ErrDown, ErrNothingSent, c.where(), err)
	case noLonger:
		return fmt.Errorf("%w: %w, %s: %w", upstream.ErrDown, ErrNothingSent, c.where(), err)
	case unknown:
		return fmt.Errorf("%w: %w, %s: %w", upstream.ErrDown, ErrNoAnswer, c.where(), err)
	}
	return fmt.Errorf("%w, %s: %w", ErrRefused, c.where(), c.advice(err))
}

// advice adds to an answer what to look at.
func (c *Config) advice(err error) error {
	switch {
	case errors.Is(err, zk.ErrNoAuth):
		return fmt.Errorf("%w (the store URL's user and password, or password_file=, need the rights to read, create and delete under %q)",
			err, c.Chroot+"/")
	case errors.Is(err, zk.ErrInvalidACL), errors.Is(err, zk.ErrAuthFailed):
		return fmt.Errorf("%w (look at the store URL's user and password, password_file= and acl=)", err)
	case err.Error() == "unknown error: -124":
		return fmt.Errorf("%w (the server wants a login that this client does not have, such as SASL)", err)
	case unimplemented(err):
		return fmt.Errorf("%w (container nodes need ZooKeeper 3.5.3 or later)", err)
	}
	return err
}
