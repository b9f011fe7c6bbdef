package sim

import (
	"fmt"
	"strings"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/protocol"
)

// fault is a kind of fault. Each is counted when it has had its effect.
type fault uint8

const (
	hostFreeze  fault = iota // the daemon is stopped for a while, and its clients run on
	hostSuspend              // the machine is suspended for a while, with the daemon and its clients
	// The daemon freezes between a decision and the sending of its effects.
	hostFreezeMid
	hostLag      // a goroutine continues with a clock reading that is out of date
	hostKill     // the daemon is killed and started anew
	hostDrain    // the daemon is asked to stop, and started anew
	hostTakeover // another process takes the daemon's place
	hostReload   // the daemon follows another configuration
	partition    // host and store do not reach each other
	lostRequest  // a request never arrives at the store
	lostReply    // a request is carried out, and the answer is lost
	lateRequest  // a request is carried out after the daemon has given it up
	doubled      // a request is carried out twice
	// The connection breaks, so the answer is known to be lost before the timeout.
	cut
	slowReply // the answer takes almost as long as the daemon waits for it
	hintLost
	hintLate
	hintDoubled
	storePause         // a store stops for a while
	storeRefuse        // a store has no memory left: it refuses writes except releases and renewals
	storeReadOnly      // a store refuses every write
	storeRestart       // a store restarts: connections break, and it forgets nothing
	storeLoss          // a store restarts and has forgotten everything
	storeFlush         // a store forgets everything
	clockForward       // the clock of a store is set forward
	clockBack          // the clock of a store is set back
	sessionEnd         // a store ends a daemon's session
	clientPause        // the process is stopped for a while
	clientKill         // the process is killed
	clientLeave        // a client closes its connection
	clientUnresponsive // a client does not read for a while
	clientFlood        // a client does not read for a while, and sends many requests
	clientGarbage      // a client sends bytes that are no frame
	clientSilent       // a client sends no heartbeats for a while
	operator           // an operator unlocks a key by force
	nFaults
)

var faultNames = [nFaults]string{"host freeze", "host suspend", "host freeze mid-step",
	"host clock lag", "host kill", "host drain", "host takeover", "host reload", "partition",
	"request lost", "reply lost", "request late", "request doubled", "connection cut", "reply slow",
	"hint lost", "hint late",
	"hint doubled", "store pause", "store out of memory", "store read-only", "store restart",
	"store restart with loss",
	"store flush", "store clock forward", "store clock back", "store session ended",
	"client pause", "client kill",
	"client leave", "client unresponsive", "client flood", "client garbage",
	"client silent", "operator"}

func (f fault) String() string { return faultNames[f] }

// tally counts an event that a good set of seeds has to contain.
type tally uint8

const (
	fenceWrites    tally = iota // writes that a resource which checks fences has accepted
	fenceRefused                // writes that such a resource has refused
	waivedOverlap               // two holders after a best-effort store had forgotten leases
	waivedFence                 // fences out of order after a best-effort store had forgotten leases
	lapsed                      // validities that were over before the daemon extended them
	revived                     // validities that the daemon has extended after they were over
	handoffs                    // grants without a trip to the store
	rebases                     // fence bases fetched for a held lease
	reentries                   // grants to owners that held the key already
	freshGrants                 // grants that make a hold
	manyGrants                  // multi-acquires that succeeded
	crossedCancels              // cancels that came too late
	lateGrants                  // grants whose validity was over when they were read
	foreignHolds                // grants to plain lockers
	ownClock                    // clients that map the daemon's clock to another
	tooSlow                     // sessions ended because the client did not read
	wrongRequests               // requests that cannot be carried out
	usedUp                      // last fences of a base on stores that cannot give another
	quietReleases               // releases without an answer
	quietFailures               // quiet releases that have failed
	outages                     // stores found to be down
	degraded                    // grants by a host alone
	permits                     // permits of semaphores that were granted
	waivedCrowd                 // too many permits at once, after the store had forgotten some
	apart                       // two holders that need not exclude each other: see hold.apart
	lingered                    // grants of a lease that the host had kept while nobody held it
	briefJoins                  // short-lived joins that a store has carried out
	badReloads                  // reloads that were refused
	dropped                     // stores that a daemon has dropped
	takenBack                   // stores that were leaving when a reload named them again
	heartbeats                  // pings that answer a keepalive
	// acquires of a key by an owner whose hold of it is lost and not given up
	reacquired
	holdersNamed // inspects that were answered with the holders' names
	viewed       // holds in views
	swept        // entries that a sweep has found, and that the daemon knows
	pairTrips    // batches to one store of a pair
	rollouts     // rollouts of a move to another store
	notes        // changes of the note of a pair
	movedHolds   // holds that began at another store than the hold of the key before
	foundGone    // holds that a store did not know at their release
	// holds that began at another store than the daemon's hold before, where bases can be raised
	carriedFloors
	// releases and withdrawals that were sent to a pair while it counted as down
	endsWhileDown
	stalls           // freezes of a host when the silence of a client has lasted too long
	editedTakeovers  // takeovers by a process with another configuration
	refusedTakeovers // takeovers refused, because that configuration lacks a store in use
	// smaller fences of a daemon after a move to a store that decides its fences itself
	ownOrder
	leftBehind       // stores in use that the next process did not have
	fixedGrants      // fixed holds whose end was compared with their TTL
	manyAlone        // keys of multi-acquires that a host granted alone
	queuedOps        // ops that waited in a main lane at a takeover
	lowerLimits      // acquires of a semaphore with fewer permits than others have named
	queried          // queries of stores that were answered
	delays           // delays of readers by the rate limit of a user
	keeps            // grants with a keep
	detaches         // holds that have become detached
	keepsEnded       // keeps that have ended in time, or by a release that may end them
	keepsLeft        // keeps of daemons that have ended, which their stores keep
	parks            // detached holds left by a daemon that has drained
	keepsWaived      // grants during a keep that need not exclude it
	detachedReleased // releases of detached holds that were carried out
	detachedDenied   // releases of detached holds that were refused
	reloadSteps      // of reloads between which other events may come
	anyGrants        // acquires of one of several keys that succeeded
	anyWaits         // acquires of one of several keys that waited in the queues of all keys
	anyBusy          // acquires of one of several keys that were answered busy
	nTallies
)

var tallyNames = [nTallies]string{"fenced writes", "fenced writes refused",
	"overlaps waived after loss", "fence orders waived after loss",
	"validity lapsed", "validity revived", "handoffs", "rebases", "re-entries", "fresh grants",
	"multi-acquires granted",
	"cancels crossed", "grants read too late", "foreign holds", "clients with a clock of their own",
	"sessions cut as too slow", "wrong requests", "fence bases used up",
	"quiet releases", "quiet releases that failed",
	"outages", "degraded grants", "permits granted", "crowds waived after loss",
	"overlaps of degraded holds",
	"grants of lingering leases", "short-lived joins", "bad reloads", "stores dropped",
	"stores taken back", "heartbeats", "acquires behind a loss",
	"holders named", "holds viewed", "entries that sweeps have left",
	"trips of pairs", "rollouts", "changes of a pair's note", "holds behind a move", "holds found gone at their release",
	"fences carried over a reload",
	"ends sent to a pair that is down", "stalls behind a silence",
	"takeovers with another configuration", "takeovers refused",
	"fences that fell to a store's own order", "stores left behind", "ends of fixed holds compared",
	"degraded grants of multi-acquires", "ops taken over in a queue",
	"lower limits of semaphores", "queries of stores", "delays by rate limits",
	"grants with a keep", "holds detached", "keeps ended", "keeps of ended daemons",
	"detached holds parked",
	"overlaps of keeps waived", "detached holds released", "detached holds denied",
	"steps of reloads",
	"acquire-anys granted", "acquire-anys in all queues", "acquire-anys busy"}

func (t tally) String() string { return tallyNames[t] }

// Counts has the numbers of all events in runs.
type Counts struct {
	Faults   [nFaults]int
	Tallies  [nTallies]int
	Requests [16]int // by op
	Replies  [32]int // by code
	Fatals   [32]int // by code
	Pushes   [8]int  // by event, from EventLost on
	Lost     [16]int // by reason
	Ops      [16]int // by kind, when a store has carried them out
	Results  [8]int  // by status, when the daemon has received them
	Modes    [4]int  // of ops
	Hints    [8]int  // by kind, when the daemon has received them
	Notices  [8]int  // by kind, for the audit log
	Causes   [8]int  // of holds that ended without being lost
	Inspects [4]int  // by where the key is held
	Flags    [6]int  // of requests, by flagNames
}

// Add adds o to c.
func (c *Counts) Add(o *Counts) {
	add := func(a, b []int) {
		for i := range a {
			a[i] += b[i]
		}
	}
	add(c.Faults[:], o.Faults[:])
	add(c.Tallies[:], o.Tallies[:])
	add(c.Requests[:], o.Requests[:])
	add(c.Replies[:], o.Replies[:])
	add(c.Fatals[:], o.Fatals[:])
	add(c.Pushes[:], o.Pushes[:])
	add(c.Lost[:], o.Lost[:])
	add(c.Ops[:], o.Ops[:])
	add(c.Results[:], o.Results[:])
	add(c.Modes[:], o.Modes[:])
	add(c.Hints[:], o.Hints[:])
	add(c.Causes[:], o.Causes[:])
	add(c.Inspects[:], o.Inspects[:])
	add(c.Flags[:], o.Flags[:])
	add(c.Notices[:], o.Notices[:])
}

func (c *Counts) each(row func(group, name string, n int)) {
	for i, n := range c.Faults {
		row("faults", fault(i).String(), n)
	}
	for i, n := range c.Tallies {
		row("seen", tally(i).String(), n)
	}
	for op, name := range requestNames {
		if name != "" { // 0 is no op
			row("requests", name, c.Requests[op])
		}
	}
	for code := protocol.OK; code <= protocol.Overlong; code++ {
		row("replies", code.String(), c.Replies[code])
	}
	for code := protocol.Draining; code <= protocol.TooSlow; code++ {
		row("fatals", code.String(), c.Fatals[code])
	}
	for i, name := range [...]string{"lost", "keepalive", "going-away", "fatal", "release-failed"} {
		row("pushes", name, c.Pushes[i])
	}
	for r := protocol.LostExpired; r <= protocol.LostSilent; r++ {
		row("lost", r.String(), c.Lost[r])
	}
	for k := cache.OpTry; k <= cache.OpPeek; k++ {
		row("store ops", k.String(), c.Ops[k])
	}
	for s := cache.Unknown; s <= cache.Refused; s++ {
		row("store results", s.String(), c.Results[s])
	}
	for m := cache.Exclusive; m <= cache.Permit; m++ {
		row("op modes", m.String(), c.Modes[m])
	}
	for i, name := range [...]string{"available", "contended", "gone", "tried"} {
		row("hints", name, c.Hints[int(cache.HintAvailable)+i])
	}
	for i, name := range [...]string{"acquired", "refused", "released", "lost", "detached"} {
		row("audit", name, c.Notices[int(cache.NoticeAcquired)+i])
	}
	for i, name := range [...]string{"released", "session ended", "given back", "fixed end"} {
		row("ends", name, c.Causes[int(cache.CauseRelease)+i])
	}
	for i, name := range [...]string{"nowhere", "here", "elsewhere"} {
		row("inspected", name, c.Inspects[protocol.HeldNot+i])
	}
	for i, name := range flagNames {
		row("flags", name, c.Flags[i])
	}
}

// flagNames has the flags that a request may have. Their bits depend on the request.
var flagNames = [...]string{"fixed", "async", "all", "quiet", "detached", "now"}

// flagged counts the flags of a request. The flags of an inspect are a tally: see holdersNamed.
func (c *Counts) flagged(p *protocol.Request) {
	switch p.Op {
	case protocol.OpAcquire, protocol.OpAcquireMany, protocol.OpAcquireAny:
		c.Flags[0] += int(p.Flags & protocol.FlagFixed)
	case protocol.OpRelease, protocol.OpReleaseMany:
		for i := range 5 {
			c.Flags[1+i] += int(p.Flags >> i & 1)
		}
	}
}

var requestNames = [...]string{"", "hello", "acquire", "release", "renew", "downgrade", "cancel",
	"inspect", "acquire-many",
	"release-many", "ping", "list", "stored", "acquire-any", "force-unlock"}

// never has the events that no run can show, with the reasons.
var never = map[string]string{
	"replies bad_frame":   "the daemon sends it as a fatal",
	"replies bad_version": "the daemon sends it as a fatal",
	"replies too_slow":    "the client would not read it; counted as sessions cut as too slow",
	"fatals too_slow":     "the client would not read it; counted as sessions cut as too slow",
	"fatals denied":       "every user may connect here",
	"lost shutdown":       "it is counted and logged; clients read the fatal draining",
}

// Missing returns the names of all events that did not occur.
func (c *Counts) Missing() (names []string) {
	c.each(func(group, name string, n int) {
		if full := group + " " + name; n == 0 && never[full] == "" {
			names = append(names, full)
		}
	})
	return names
}

func (c *Counts) String() string {
	var b strings.Builder
	last := ""
	c.each(func(group, name string, n int) {
		if group != last {
			fmt.Fprintf(&b, "\n%-14s", group+":")
			last = group
		} else {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%s %d", name, n)
	})
	return strings.TrimPrefix(b.String(), "\n")
}
