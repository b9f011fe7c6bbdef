package cache

import (
	"errors"
	"sync/atomic"
)

// Limits: how much a session, a user's sessions together, and all clients together in a namespace
// may hold and wait for. Each is looked at before it is counted, so what several threads
// decide in the same moment may pass a shared one, by one each.

// Use counts what is held and waited for in a namespace, or by a user's sessions, over all
// tables.
type Use struct {
	MaxHolds, MaxWaiters atomic.Int64 // 0 for no bound
	Holds, Waiters       atomic.Int64
	Asks                 atomic.Int64 // of a user: see Session
}

// Errors of limits, for people.
var (
	errSessionHolds = errors.New("this session holds as many locks as it may")
	errSessionWaits = errors.New("this session waits for as many answers as it may")
	errUserHolds    = errors.New("this user's sessions hold as many locks as they may")
	errUserWaits    = errors.New("this user's sessions wait for as many answers as they may")
	errSpaceHolds   = errors.New("as many locks are held in this namespace as may be")
	errSpaceWaits   = errors.New("as many acquires wait in this namespace as may")
)

func (u *Use) holds() bool { return u != nil && over(&u.Holds, &u.MaxHolds) }
func (u *Use) waits() bool { return u != nil && over(&u.Waiters, &u.MaxWaiters) }
func (u *Use) asks() bool  { return u != nil && over(&u.Asks, &u.MaxWaiters) }

func over(n, most *atomic.Int64) bool {
	m := most.Load()
	return m > 0 && n.Load() >= m
}

func (u *Use) addHolds(n int64) {
	if u != nil {
		u.Holds.Add(n)
	}
}

func (u *Use) addWaiters(n int64) {
	if u != nil {
		u.Waiters.Add(n)
	}
}

func (u *Use) addAsks(n int64) {
	if u != nil {
		u.Asks.Add(n)
	}
}

// addAsks counts what s has asked for that a store has to answer.
func (s *Session) addAsks(n int64) {
	s.Asks.Add(n)
	s.User.addAsks(n)
}

// mayHold says why s may not hold one more in ns; nil when it may.
func (t *Table) mayHold(s *Session, ns *Namespace) error {
	switch {
	case s.Holds.Load() >= t.cfg.MaxHolds:
		return errSessionHolds
	case s.User.holds():
		return errUserHolds
	case ns.Use.holds():
		return errSpaceHolds
	}
	return nil
}

// mayWait says why s may not wait for one more in ns; nil when it may.
func (t *Table) mayWait(s *Session, ns *Namespace) error {
	switch {
	case s.Waiters.Load() >= t.cfg.MaxWaiters:
		return errSessionWaits
	case s.User.waits():
		return errUserWaits
	case ns.Use.waits():
		return errSpaceWaits
	}
	return t.mayAsk(s)
}

// mayAsk says why s may not have one more answer of a store to come; nil when it may. Whoever
// withdraws what he waits for, or goes, leaves the store's answer to come all the same.
func (t *Table) mayAsk(s *Session) error {
	switch {
	case s.Asks.Load() >= t.cfg.MaxWaiters:
		return errSessionWaits
	case s.User.asks():
		return errUserWaits
	}
	return nil
}
