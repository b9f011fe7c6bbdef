package testserver

import (
	"fmt"
	"sync"
	"testing"
)

// Tests runs the tests of a package. Meanwhile, an etcd or ZooKeeper server with the usual settings
// that its test has neither ended nor paused is emptied and passed on to another test. Most tests
// take less time than the start of such a server.
type Tests struct{ M interface{ Run() int } }

// maxIdle is the maximum number of idle servers of one kind.
const maxIdle = 4

// idle has the servers that wait for a test, by their type. It is nil unless Tests runs.
var (
	idleMutex sync.Mutex
	idle      map[string][]server // guarded by idleMutex
)

type server interface {
	self() *process
	// empty deletes what tests have stored. It returns false if other tests could notice more.
	empty() bool
}

func (p *process) self() *process { return p }

// Run runs the tests, and ends the servers then.
func (r Tests) Run() int {
	idleMutex.Lock()
	idle = map[string][]server{}
	idleMutex.Unlock()
	code := r.M.Run()
	idleMutex.Lock()
	defer idleMutex.Unlock()
	for _, all := range idle {
		for _, s := range all {
			_ = s.self().discard()
		}
	}
	idle = nil
	return code
}

// reuse lets other tests use the server when its test has ended.
func reuse(s server) {
	p, kind := s.self(), fmt.Sprintf("%T", s)
	p.passOn = func() bool {
		if !s.empty() {
			return false
		}
		p.closing()
		idleMutex.Lock()
		defer idleMutex.Unlock()
		if idle == nil || len(idle[kind]) == maxIdle {
			return false
		}
		idle[kind] = append(idle[kind], s)
		return true
	}
}

// reused returns an idle server, which t has from now on; nil if there is none.
func reused[S server](t testing.TB) (s S) {
	idleMutex.Lock()
	defer idleMutex.Unlock()
	kind := fmt.Sprintf("%T", s)
	if n := len(idle[kind]) - 1; n >= 0 {
		s = idle[kind][n].(S)
		idle[kind] = idle[kind][:n]
		s.self().adopt(t)
	}
	return s
}
