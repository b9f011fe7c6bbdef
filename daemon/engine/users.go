package engine

import (
	"maps"
	"slices"

	"github.com/locksidecar/locksidecar/cache"
)

// Limits bounds the resources that clients can use. The comments give the daemon's defaults for
// fields that are 0.
type Limits struct {
	Users      UserLimits // of each user: none
	MaxHolds   int        // of a session: 2,000,000
	MaxWaiters int        // of a session: 65,536
	MaxFrame   int        // bytes of a payload: 64 KiB
	OutBuffer  int        // bytes that wait for a client to read them: 4 MiB
}

// UserLimits limits what all sessions of one user together can use. 0 is no limit.
type UserLimits struct {
	Conns   int // connections
	Holds   int
	Waiters int
	Rate    int // requests a second
}

// userUse counts the resources used by one user's sessions. All users that are unknown, or that the
// daemon's user namespace does not map, count as one.
type userUse struct {
	use      cache.Use
	pace     pace
	conns    int
	detached *Session // has the user's detached holds; it is not among Engine.sessions
}

// users holds the known users by uid. It is guarded by Engine.mu.
type users map[int]*userUse

func (us users) conns(uid int) int {
	if u := us[uid]; u != nil {
		return u.conns
	}
	return 0
}

// leave ends a session of a user. It forgets users without sessions. It keeps a user with detached
// holds, and one for whose requests a store has to answer. It also keeps a user while earlier
// requests affect its rate limit: a user must gain nothing by connecting again.
func (us users) leave(uid int, now int64) {
	u := us[uid]
	if u.conns--; u.conns == 0 {
		maps.DeleteFunc(us, func(_ int, u *userUse) bool {
			return u.conns == 0 && u.use.Holds.Load() == 0 && u.use.Asks.Load() == 0 &&
				u.pace.settled(now)
		})
	}
}

// addToUser adds s to its user's sessions. It is called with e.mu held.
func (e *Engine) addToUser(s *Session) {
	u := e.user(s.peer.UID)
	u.conns++
	s.core.User, s.core.Detached, s.pace = &u.use, u.detached.core, &u.pace
}

// user returns the use of a user, which it makes if there is none. It is called with e.mu held.
func (e *Engine) user(uid int) *userUse {
	u := e.users[uid]
	if u == nil {
		u = new(userUse)
		e.users[uid] = u
		u.limit(e.settings().Users)
		u.detached = &Session{core: cache.NewDetached(detachedID|uint64(uint32(uid)), shards, &u.use),
			peer: Peer{PID: -1, UID: uid, GID: -1}, engine: e, floor: cache.Forever,
			keepaliveAt: cache.Forever}
		u.detached.core.Shell = u.detached
		u.detached.ended.Store(true) // nothing is ever written
	}
	return u
}

// detachedID marks the numbers of the sessions that have users' detached holds. They are unique,
// but no client ever sees them.
const detachedID = 1 << 63

// withDetached returns the users that have detached holds, in order. It is called with e.mu held.
func (us users) withDetached() (uids []int) {
	for uid, u := range us {
		if u.detached.core.Holds.Load() > 0 {
			uids = append(uids, uid)
		}
	}
	slices.Sort(uids)
	return uids
}

func (u *userUse) limit(l UserLimits) {
	u.use.MaxHolds.Store(int64(l.Holds))
	u.use.MaxWaiters.Store(int64(l.Waiters))
	u.pace.set(int64(l.Rate))
}
