package engine

import (
	"cmp"
	"math/bits"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/protocol"
)

// keepaliveBy makes Tick run at the time given, for a keepalive.
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

// Surveys come before keepalives: all holds of a session are looked at, in turns with those of others and
// with everything else, which a look at a million would keep waiting for a quarter of a second. They take
// their time, an eighth of what is between two keepalives: the less they do in a second the less they delay.
const (
	maxSurvey      = 2048 // holds, of whomever, in one go
	surveyTurn     = 512  // of one session
	surveyCost     = 16   // what the keepalive itself counts
	surveyPart     = 8
	surveyPauseMin = int64(time.Millisecond)
	surveyPauseMax = 5 * surveyPauseMin
)

// survey is the look at the holds of one session, of Tick alone.
type survey struct {
	s     *Session
	at    int64 // when its keepalive was due
	every int64 // between its keepalives
	w     cache.Watermark
	left  uint64 // the shards yet to be seen
	begun bool   // with the first of them
}

// keepalives tells each session that holds something, and is due, until when
// everything that it has not been told lost is valid. It returns when it wants to go on.
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

// beginKeepalive begins a session's survey if it is due. A grant that is made during that is
// counted by the outbox's floor; one that is made after the keepalive is queued
// reaches the client behind it, and a keepalive says nothing about later grants.
func (e *Engine) beginKeepalive(s *Session, now int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := s.keepaliveAt
	if at == cache.Forever || s.killed || s.surveyed {
		return
	}
	// One that is nearly due goes along, so that thousands of sessions keepalive
	// together in a few rounds.
	if at-s.keepaliveEvery/4 > now {
		e.keepaliveBy(at)
		return
	}
	s.keepaliveAt, s.floor, s.surveyed = cache.Forever, cache.Forever, true
	e.surveys = append(e.surveys, survey{s: s, at: at, every: s.keepaliveEvery, w: cache.Watermark{Until: cache.Forever}, left: s.core.Shards.Load()})
}

// pauseOf is what lies between two goes, of so many holds each.
func pauseOf(all []survey, most int) int64 {
	every, work := cache.Forever, int64(0)
	for i := range all {
		every = min(every, all[i].every)
		work += all[i].s.core.Holds.Load() + surveyCost
	}
	return min(max(every/surveyPart/(work/int64(most)+1), surveyPauseMin), surveyPauseMax)
}

// survey gives each survey its turn until enough has been looked at, and has those keepalive that are
// done.
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

// scan goes on with v for so many holds, and returns how many of them that leaves.
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

// sendKeepalive says what the survey has shown.
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
	if w.TTL != 0 { // otherwise it holds nothing but what has been granted since, which has set the next keepalive
		until = min(until, s.floor)
		if until > now && !s.killed && !s.ended.Load() {
			s.stated = max(s.stated, until)
			if s.asked <= s.heard.Load() {
				s.asked = now
			}
			s.out = protocol.AppendKeepalive(s.out, uint64(until/int64(time.Millisecond)), uint64((until-now)/int64(time.Millisecond)))
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

// hadTime reports whether the client has had a keepalive to answer, and a third of the heartbeat to answer it. It has
// had neither if its keepalives were rarer, until a reload required the heartbeat. Nor has it if the daemon stood
// still: then the answer may have come, and waits to be read.
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
		heard := s.lastHeard(now) // with the mutex held, because a grant in this shard may have moved it
		more := sh.table.LoseSilent(s.core, heard, lead, now, &sh.out)
		is.Again, is.Until = min(is.Again, more.Again), min(is.Until, more.Until)
		e.unlock(sh, i, now, a)
	}
	return is
}
