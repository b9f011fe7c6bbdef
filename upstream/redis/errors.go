package redis

import (
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"

	goredis "github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/upstream/driverkit"
)

// The driver's own errors: see package driverkit.
var ErrConfig, ErrServer, ErrNothingSent, ErrNoAnswer, ErrRefused = driverkit.Errors("redis")

// ErrAcks means that a request was carried out, but fewer servers have confirmed it than
// wait_replicas or wait_aof require.
var ErrAcks = errors.New("too few acknowledgements")

// nothingDone has prefixes of error replies that refuse a command before it has begun.
var nothingDone = []string{
	"OOM ", "READONLY ", "MISCONF ", "NOREPLICAS ", // the server must not write now
	"NOAUTH ", "WRONGPASS ", "NOPERM ", "DENIED ", // the user has not the right
	"LOADING ", "MASTERDOWN ", "BUSY ", "CLUSTERDOWN ", "TRYAGAIN ", // the server cannot do it now
	// another node or another command is needed.
	"MOVED ", "ASK ", "CROSSSLOT ", "NOSCRIPT ", "NOPROTO ",
	"ERR unknown command", "ERR max number of clients", "ERR AUTH ",
	"ERR fence bases are used up",
}

// refused reports whether an error reply proves that nothing was done. An error that ended a script
// early names the script.
func refused(msg string) bool {
	if strings.Contains(msg, "script: ") || strings.Contains(msg, "user_script") {
		return false
	}
	msg = strings.TrimPrefix(msg, "-")
	for _, p := range nothingDone {
		if strings.HasPrefix(msg, p) {
			return true
		}
	}
	return false
}

// unables has prefixes of error replies of a server that can carry out no command, or no write.
var unables = []string{"READONLY ", "MISCONF ", "NOREPLICAS ", "NOAUTH ", "WRONGPASS ", "DENIED ",
	"LOADING ", "MASTERDOWN ",
	"BUSY ", "CLUSTERDOWN ", "ERR max number of clients", "ERR AUTH "}

func unable(msg string) bool {
	return slices.ContainsFunc(unables, func(p string) bool { return strings.HasPrefix(msg, p) })
}

// temporary has prefixes of error replies that stop without a change of the configuration.
var temporary = []string{
	"LOADING ", "MASTERDOWN ", "BUSY ", "CLUSTERDOWN ", "TRYAGAIN ", "ERR max number of clients",
}

// unavailable reports whether err, from opening the store, means that no server answered or that it
// cannot serve yet. It is false if the server must not be used.
func unavailable(err error) bool {
	if reply, ok := errors.AsType[goredis.Error](err); ok {
		return slices.ContainsFunc(temporary, func(p string) bool {
			return strings.HasPrefix(reply.Error(), p)
		})
	}
	if errors.Is(err, ErrServer) {
		return false
	}
	_, network := errors.AsType[net.Error](err) // includes timeouts
	return network || errors.Is(err, io.EOF)
}

// isReply reports whether the server sent err.
func isReply(err error) bool {
	_, ok := errors.AsType[goredis.Error](err)
	return ok
}

// advice adds the settings to check to an error of making a connection.
func advice(err error) error {
	msg := err.Error()
	switch {
	case strings.Contains(msg, "WRONGPASS"), strings.Contains(msg, "NOAUTH"):
		return fmt.Errorf("%w (look at the store URL's user and password, and password_file=)", err)
	case strings.Contains(msg, "NOPERM"):
		return fmt.Errorf("%w (the ACL user needs ~<prefix>* ~%s* &%s* +@read +@write "+
			"+@scripting +@connection +time +info +role +publish +subscribe; in a cluster "+
			"+cluster +spublish +ssubscribe too, with wait_replicas or wait_aof +wait or "+
			"+waitaof)", err, siblingPrefix, siblingPrefix)
	}
	return err
}
