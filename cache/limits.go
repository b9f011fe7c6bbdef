package cache

import (
	"errors"
	"sync/atomic"
)

// This file checks the limits of holds and waiters: of a session, of all sessions of a user, and of
// all clients in a namespace. A check and the count that follows are not atomic over the tables. So
// requests in different tables can exceed a shared limit, by one for each table.

// Use counts the holds and waiters of a namespace, or of a user's sessions, over all tables.
type Use struct {
	MaxHolds, MaxWaiters atomic.Int64 // 0 for no bound
	Holds, Waiters       atomic.Int64
	Asks                 atomic.Int64 // of a user: see Session
}

// Errors that name the limit that was reached.
var (
	errSessionHolds   = errors.New("this session has reached its limit of held locks")
	errDetachedHolds  = errors.New("this user has reached the limit of detached holds")
	errSessionWaits   = errors.New("this session has reached its limit of waiting requests")
	errUserHolds      = errors.New("this user has reached the limit of held locks")
	errUserWaits      = errors.New("this user has reached the limit of waiting requests")
	errNamespaceHolds = errors.New("this namespace has reached its limit of held locks")
	errNamespaceWaits = errors.New("this namespace has reached its limit of waiting requests")
)

func (u *Use) atMaxHolds() bool   { return u != nil && reached(&u.Holds, &u.MaxHolds) }
func (u *Use) atMaxWaiters() bool { return u != nil && reached(&u.Waiters, &u.MaxWaiters) }
func (u *Use) atMaxAsks() bool    { return u != nil && reached(&u.Asks, &u.MaxWaiters) }

// reached reports whether n has reached limit. A limit of 0 is no limit.
func reached(n, limit *atomic.Int64) bool {
	m := limit.Load()
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

// addAsks adds n to the count of requests of s that a store has to answer.
func (s *Session) addAsks(n int64) {
	s.Asks.Add(n)
	s.User.addAsks(n)
}

// mayHold returns an error if s may not have one more hold in ns, with the keep given. Detached
// holds have the limit of a session too.
func (t *Table) mayHold(s *Session, ns *Namespace, keep int64) error {
	switch {
	case keep > 0 && s.Detached.Holds.Load() >= t.cfg.MaxHolds:
		return errDetachedHolds
	case s.Holds.Load() >= t.cfg.MaxHolds:
		return errSessionHolds
	case s.User.atMaxHolds():
		return errUserHolds
	case ns.Use.atMaxHolds():
		return errNamespaceHolds
	}
	return nil
}

// mayWait returns an error if s may not have one more waiter in ns.
func (t *Table) mayWait(s *Session, ns *Namespace) error {
	switch {
	case s.Waiters.Load() >= t.cfg.MaxWaiters:
		return errSessionWaits
	case s.User.atMaxWaiters():
		return errUserWaits
	case ns.Use.atMaxWaiters():
		return errNamespaceWaits
	}
	return t.mayAsk(s)
}

// mayAsk returns an error if s may not have one more request at a store. A request still counts
// after its session has withdrawn it or has ended, until the store answers.
func (t *Table) mayAsk(s *Session) error {
	switch {
	case s.Asks.Load() >= t.cfg.MaxWaiters:
		return errSessionWaits
	case s.User.atMaxAsks():
		return errUserWaits
	}
	return nil
}
