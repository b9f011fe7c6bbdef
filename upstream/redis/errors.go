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

// nothingDone are the beginnings of the error replies with which a server turns
// a command down before it has begun.
var nothingDone = []string{
	"OOM ", "READONLY ", "MISCONF ", "NOREPLICAS ", // it must not write now
	"NOAUTH ", "WRONGPASS ", "NOPERM ", "DENIED ", // we may not
	"LOADING ", "MASTERDOWN ", "BUSY ", "CLUSTERDOWN ", "TRYAGAIN ", // not now
	"MOVED ", "ASK ", "CROSSSLOT ", "NOSCRIPT ", "NOPROTO ", // not here, not so
	"ERR unknown command", "ERR max number of clients", "ERR AUTH ",
	"ERR fence bases are used up",
}

// refused says whether an error reply proves that nothing was done. An error
// that left a script half-way names the script.
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

// unables are the beginnings of those of them that say that the server can do
// nothing, or write nothing, whatever it is asked.
var unables = []string{"READONLY ", "MISCONF ", "NOREPLICAS ", "NOAUTH ", "WRONGPASS ", "DENIED ",
	"LOADING ", "MASTERDOWN ",
	"BUSY ", "CLUSTERDOWN ", "ERR max number of clients", "ERR AUTH "}

func unable(msg string) bool {
	return slices.ContainsFunc(unables, func(p string) bool { return strings.HasPrefix(msg, p) })
}

// temporary are prefixes of errors that end by themselves, without a change of the configuration.
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

// isReply says that err is an error that the server sent.
func isReply(err error) bool {
	_, ok := errors.AsType[goredis.Error](err)
	return ok
}

// advice adds to an error of connecting what to look at.
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
