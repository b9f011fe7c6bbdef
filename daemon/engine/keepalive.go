package engine

import (
	"cmp"
	"math/bits"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/protocol"
)

// keepaliveBy makes Tick run at the given time, for a keepalive.
func (e *Engine) keepaliveBy(at int64) {
	for {
		next := e.nextKeepalive.Load()
		if at >= next {
			return
		}
		if e.nextKeepalive.CompareAndSwap(next, at) {
			e.wake(at)
			return
		}
	}
}

// A survey precedes each keepalive: it visits all holds of the session, to find the time that the
// keepalive can state. Surveys of several sessions take turns, and pause for other work: to visit a
// million holds at once would delay everything else for a quarter of a second. The pauses spread a
// survey over up to an eighth of the time between two keepalives.
const (
	maxSurvey      = 2048 // holds in one part, of all sessions together
	surveyTurn     = 512  // holds of one session before the next one's turn
	surveyCost     = 16   // cost of the keepalive itself, in holds
	surveyPart     = 8    // surveys may take this part of the time between two keepalives: 1/8
	surveyPauseMin = int64(time.Millisecond)
	surveyPauseMax = 5 * surveyPauseMin
)

// survey is the state of a survey of one session's holds. Only Tick uses it.
type survey struct {
	s     *Session
	at    int64 // when the session's keepalive was due
	every int64 // time between its keepalives
	w     cache.Watermark
	left  uint64 // the set of shards that are still to be visited
	begun bool   // the first of these shards has been visited in part
}

// keepalives sends a keepalive to each session with holds for which one is due. A keepalive states
// a time: every hold that was not reported lost is valid until then. keepalives returns when it has
// to be called next.
func (e *Engine) keepalives(now int64, a *followUp) int64 {
	if e.nextKeepalive.Load() <= now {
		e.nextKeepalive.Store(cache.Forever)
		all := e.Sessions()
		slices.SortFunc(all, func(a, b *Session) int { return cmp.Compare(a.core.ID, b.core.ID) })
		for _, s := range all {
			e.beginKeepalive(s, now)
		}
		e.surveyPause = pauseOf(e.surveys, e.settings().Survey)
		e.findCycles(now, all)
	}
	if len(e.surveys) > 0 && e.surveyAt <= now {
		e.surveyAt = now + e.surveyPause
		e.survey(now, a)
	}
	if len(e.surveys) == 0 {
		return cache.Forever
	}
	return e.surveyAt
}

// beginKeepalive begins a session's survey if it is due. The survey does not visit holds that are
// granted meanwhile; the session's floor takes them into account. A grant that is made after the
// keepalive is queued reaches the client later, and a keepalive does not apply to later grants.
func (e *Engine) beginKeepalive(s *Session, now int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := s.keepaliveAt
	if at == cache.Forever || s.killed || s.surveyed {
		return
	}
	// A session that is nearly due is surveyed now, too, so that a few rounds serve
	// thousands of sessions.
	if at-s.keepaliveEvery/4 > now {
		e.keepaliveBy(at)
		return
	}
	s.keepaliveAt, s.floor, s.surveyed = cache.Forever, cache.Forever, true
	e.surveys = append(e.surveys, survey{s: s, at: at, every: s.keepaliveEvery,
		w: cache.Watermark{Until: cache.Forever}, left: s.core.Shards.Load()})
}

// pauseOf returns the pause between two parts of the surveys, of up to limit holds each.
func pauseOf(all []survey, limit int) int64 {
	every, work := cache.Forever, int64(0)
	for i := range all {
		every = min(every, all[i].every)
		work += all[i].s.core.Holds.Load() + surveyCost
	}
	return min(max(every/surveyPart/(work/int64(limit)+1), surveyPauseMin), surveyPauseMax)
}

// survey does one part of the surveys, in turns, and sends the keepalives of the sessions whose
// surveys are complete.
func (e *Engine) survey(now int64, a *followUp) {
	for n := e.settings().Survey; n > 0 && len(e.surveys) > 0; {
		v := &e.surveys[0]
		turn := min(n, surveyTurn)
		n -= turn - e.scan(v, turn, now)
		if v.left == 0 || v.s.ended.Load() {
			e.sendKeepalive(v, now, a)
			n -= surveyCost
		} else {
			e.surveys = append(e.surveys, *v)
		}
		e.surveys[0] = survey{}
		e.surveys = e.surveys[1:]
	}
}

// scan continues v for up to n holds, and returns the unused budget.
func (e *Engine) scan(v *survey, n int, now int64) int {
	for n > 0 && v.left != 0 {
		i := bits.TrailingZeros64(v.left)
		sh := e.lock(i)
		n = sh.table.Survey(v.s.core, !v.begun, &v.w, n, now)
		sh.mu.Unlock()
		if v.begun = n == 0; !v.begun {
			v.left &= v.left - 1
		}
	}
	return n
}

// sendKeepalive sends the keepalive of a session whose survey is complete.
func (e *Engine) sendKeepalive(v *survey, now int64, a *followUp) {
	s, w := v.s, &v.w
	ttl, until := w.TTL, w.Until
	silence := cache.Silence{Again: cache.Forever, Until: cache.Forever}
	if w.Heartbeat > 0 {
		ttl = min(ttl, w.Heartbeat)
		if now >= s.lastHeard(now)+w.Heartbeat && !s.hadTime(v, now) {
			s.hear(now)
		}
		silence.Until = s.heard.Load() + w.Heartbeat
		if silence.Again = silence.Until; now >= silence.Again {
			silence = e.loseSilent(s, ttl/3, now, a)
		}
		until = min(until, silence.Until)
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	s.surveyed = false
	// Without a TTL, the survey has found no hold. Holds that were granted since have set keepaliveAt.
	if w.TTL != 0 {
		until = min(until, s.floor)
		if until > now && !s.killed && !s.ended.Load() {
			s.stated = max(s.stated, until)
			if s.asked <= s.heard.Load() {
				s.asked = now
			}
			s.out = protocol.AppendKeepalive(s.out, uint64(until/int64(time.Millisecond)),
				uint64((until-now)/int64(time.Millisecond)))
			a.mark(s)
		}
		s.keepaliveEvery = ttl / 3
		s.keepaliveAt = min(s.keepaliveAt, now+s.keepaliveEvery)
		s.keepaliveAt = min(s.keepaliveAt, max(now+1, silence.Again))
	}
	if s.keepaliveAt != cache.Forever {
		e.keepaliveBy(s.keepaliveAt)
	}
}

// hadTime reports whether the client has had a keepalive to answer, and a third of the heartbeat to
// answer it. It has not if a reload has just required the heartbeat, because keepalives were less
// frequent before. Nor has it if the daemon was stopped, because the answer may have arrived
// without having been read.
func (s *Session) hadTime(v *survey, now int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	third := v.w.Heartbeat / 3
	return s.asked > s.heard.Load() && now-s.asked >= third && now-v.at <= third
}

// loseSilent ends the holds that a session loses by its silence: see cache.Table.LoseSilent.
func (e *Engine) loseSilent(s *Session, lead, now int64, a *followUp) cache.Silence {
	is := cache.Silence{Again: cache.Forever, Until: cache.Forever}
	mask := s.core.Shards.Load()
	for i := range e.shards {
		if mask&(1<<i) == 0 {
			continue
		}
		sh := e.lock(i)
		heard := s.lastHeard(now) // with the mutex held: a grant in this shard may have moved it
		more := sh.table.LoseSilent(s.core, heard, lead, now, &sh.out)
		is.Again, is.Until = min(is.Again, more.Again), min(is.Until, more.Until)
		e.carryOutAndUnlock(sh, now, a)
	}
	return is
}
