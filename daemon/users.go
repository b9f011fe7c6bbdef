package daemon

import (
	"maps"

	"github.com/locksidecar/locksidecar/cache"
)

// UserLimits bound what all sessions of one user together can use up. 0 is no bound.
type UserLimits struct {
	Conns   int // connections
	Holds   int
	Waiters int
	Rate    int // requests a second
}

// userUse is of who has, or has had, sessions. Of those of whom nothing is known, and of those whom the
// daemon's user namespace does not map, all are one.
type userUse struct {
	use   cache.Use
	pace  pace
	conns int
}

// users are the users that there are, by uid. Engine.mu guards them.
type users map[int]*userUse

func (us users) conns(uid int) int {
	if u := us[uid]; u != nil {
		return u.conns
	}
	return 0
}

// leave is the end of a session. A user is forgotten with his last one, unless a store has answers to
// come for him, or what he has asked counts for his pace: who connects anew has no more than he had.
func (us users) leave(uid int, now int64) {
	u := us[uid]
	if u.conns--; u.conns == 0 {
		maps.DeleteFunc(us, func(_ int, u *userUse) bool { return u.conns == 0 && u.use.Asks.Load() == 0 && u.pace.settled(now) })
	}
}

// belongs makes s one of its user's. Called with e.mu held.
func (e *Engine) belongs(s *Session) {
	u := e.users[s.peer.UID]
	if u == nil {
		u = new(userUse)
		e.users[s.peer.UID] = u
		u.limit(e.settings().Users)
	}
	u.conns++
	s.core.User, s.pace = &u.use, &u.pace
}

func (u *userUse) limit(l UserLimits) {
	u.use.MaxHolds.Store(int64(l.Holds))
	u.use.MaxWaiters.Store(int64(l.Waiters))
	u.pace.set(int64(l.Rate))
}
