package sim

import (
	"fmt"
	"slices"
)

// storeKind is the kind of the stores in a run.
type storeKind uint8

const (
	likeRedis    storeKind = iota // leases with TTLs of their own, best-effort
	likeEtcd                      // leases by the daemon's session, linearizable
	likeEmbedded                  // the same inside the daemon: answers inline, one host
	likeBoth                      // two of the others at once
)

func (k storeKind) String() string {
	return [...]string{"redis", "etcd", "embedded", "both"}[k]
}

// Profile is the kind of run that a seed makes. Each run leaves out many features, so that the
// others occur often.
type Profile struct {
	Store   storeKind
	More    []storeKind // stores beside that one
	Calm    bool        // no faults at all: then nothing may ever be lost
	Chain   bool        // bursts of handoffs on one key, as far as a fence base goes
	Hosts   int
	Clients int // how many each host has
	Crowd   int // how many the first host has instead; 0 for no exception
	Keys    int
	Owners  int // how many each client has
	Foreign int // plain SET NX PX lockers

	TTLs   []int64 // the TTLs that clients ask for, ms
	Act    int64   // mean pause between two acts of a client
	Hold   int64   // mean time for which a hold is kept
	Shared int     // permille of acquires; so are the next three
	Fixed  int
	Try    int
	Many   int
	// Each multi-acquire has an owner of its own. Degraded holds have no fence, and without it the
	// holds of one owner are too much alike for the model to follow.
	ManyApart bool
	Any       int   // permille of acquires that are for one of several keys
	Together  int   // the same, of acquires that all owners of a client make at once
	Odd       int   // permille of acts that are none of acquire and release
	Latency   int64 // to the store, one way; the mean
	Hop       int64 // between two processes of a host, the longest
	Timeout   int64 // of one batch
	Session   int64 // TTL of the daemon's session
	Hands     int   // how many handoffs a daemon may make while the key is contended
	HandTime  int64 // the same as a time
	MaxHold   int64 // max_hold of namespaces; 0 for none
	Tenure    int64
	Linger    int64
	// For this time, a key does not linger after another host has acquired or waited for it; below 0
	// for no time.
	Pause      int64
	Habits     int  // how many keys' pasts a daemon remembers
	Local      bool // the host grants alone in an outage
	LocalAfter int64
	InFlight   int
	Batch      int
	Survey     int // holds in one part of a survey; 0 for the daemon's default
	// Wakes is how many wake-ups of a shard, or renewals at a store, the daemon handles in one go; 0
	// for the daemon's default.
	Wakes      int
	MaxHolds   int64
	MaxWaits   int64
	UserHolds  int // of all clients of a host together; 0 for no bound
	UserWaits  int
	Rate       int // requests of a user in a second; 0 for no bound
	Out        int // bytes of a session's outbox
	Rebase     bool
	Semaphores []int // how many permits each has
	Permits    int   // permille of acquires that are of one
	Limits     bool  // not all acquires of a semaphore have the same limit
	// Namespaces is how many namespaces exist at first besides the one for all keys; 0 if it stays the
	// only one.
	Namespaces int
	Heartbeat  int64 // that namespaces require; 0 for none
	// A client that falls silent has many holds, and its host is frozen when the silence has lasted
	// too long.
	Stalls         bool
	MaxWait        int64
	NamespaceLimit int     // the largest limit of a namespace's holds and waiters; 0 for none
	Pairs          bool    // some namespaces are kept in two stores at once
	Move           bool    // all keys move from one store to another, in three rollouts
	Epoch          bool    // the new store orders its bases itself, and a fence_epoch raises them
	OneShard       bool    // all keys are in the same shard of the lock table
	Queries        bool    // daemons query their stores, and answer some requests later
	Queued         bool    // takeovers may come while ops wait in the main lanes
	Steps          bool    // other events come between the steps of a reload
	Keep           int     // permille of acquires with a keep
	Keeps          []int64 // ms; the keeps that clients ask for
	Short          bool    // stores grant a shorter session than the daemon knows when it begins
	Users          int     // how many users there are, where some namespaces are not for all of them

	// Faults has the mean time between two faults of a kind. For faults of single steps and messages
	// it has their permille instead. It is 0 for none.
	Faults [nFaults]int64
}

// has reports whether a run has a store of this kind.
func (p *Profile) has(kind string) bool {
	if kind == likeBoth.String() {
		return p.Pairs || p.Move
	}
	return p.Store.String() == kind
}

func (p Profile) String() string {
	s := fmt.Sprintf("%v, %d hosts of %d clients, %d keys, %d foreign, ttls %v ms", p.Store, p.Hosts,
		p.Clients, p.Keys, p.Foreign, p.TTLs)
	if len(p.More) > 0 {
		s += fmt.Sprintf(", stores %v", p.More)
	}
	if len(p.Semaphores) > 0 {
		s += fmt.Sprintf(", semaphores of %v", p.Semaphores)
	}
	if p.Calm {
		s += ", calm"
	}
	if p.Chain {
		s += ", chain"
	}
	switch {
	case p.Move:
		if s += ", move"; p.Epoch {
			s += " by a fence_epoch"
		}
	case p.Pairs:
		s += ", pairs"
	}
	if p.Linger > 0 {
		s += fmt.Sprintf(", lingers for %d ms", p.Linger/ms)
	}
	if p.Steps {
		s += ", steps"
	}
	if p.Stalls {
		s += ", stalls"
	}
	if p.Keep > 0 {
		s += fmt.Sprintf(", keeps of %v ms", p.Keeps)
	}
	if p.Short {
		s += ", short sessions"
	}
	if p.Local {
		s += ", local in outages"
	}
	if p.Any > 0 {
		s += ", one of several keys"
	}
	for f, v := range p.Faults {
		if v > 0 {
			s += ", " + fault(f).String()
		}
	}
	return s
}

func (w *World) newProfile(length int64) Profile {
	p := Profile{
		Hosts: 2 + w.pick(4), Clients: 1 + w.pick(3), Keys: 1 + w.pick(4), Owners: 1 + w.pick(3),
		Shared: []int{0, 150, 400, 800}[w.pick(4)], Fixed: []int{0, 100, 400}[w.pick(3)],
		Try:  []int{50, 200, 600}[w.pick(3)],
		Many: []int{0, 50, 200}[w.pick(3)], Together: []int{0, 0, 300}[w.pick(3)],
		Odd:      []int{50, 150, 300}[w.pick(3)],
		Latency:  []int64{100 * us, ms, 10 * ms, 40 * ms}[w.pick(4)],
		Hop:      300 * us,
		Timeout:  []int64{300 * ms, sec, 2 * sec}[w.pick(3)],
		Session:  []int64{2 * sec, 6 * sec, 10 * sec}[w.pick(3)],
		Hands:    []int{1, 3, 8, 8}[w.pick(4)],
		HandTime: []int64{10 * ms, 50 * ms, 50 * ms, sec}[w.pick(4)],
		InFlight: 1 + w.pick(3), Batch: []int{1, 4, 256}[w.pick(3)],
		MaxHolds: 1 << 40, MaxWaits: 1 << 40, Out: 1 << 20, Rebase: true,
	}
	if p.Survey = p.InFlight; w.chance(500) { // a few holds, or the daemon's default
		p.Survey = 0
	}
	switch r := w.pick(10); {
	case r < 6:
		p.Store = likeRedis
	case r < 9:
		p.Store, p.Rebase = likeEtcd, w.chance(200)
	default:
		p.Store, p.Hosts, p.Clients = likeEmbedded, 1, 3+w.pick(4)
	}
	if p.Store == likeRedis && w.chance(300) {
		p.Foreign = 1 + w.pick(2)
	}
	all := []int64{400, 1000, 2000, 5000, 15000}
	for n := 1 + w.pick(3); n > 0; n-- {
		p.TTLs = append(p.TTLs, all[w.pick(len(all))])
	}
	p.Calm = w.chance(120)
	if p.Calm {
		p.Latency = min(p.Latency, 10*ms)
		for i := range p.TTLs {
			p.TTLs[i] = max(p.TTLs[i], 1000)
		}
	}
	p.Chain = w.chance(80)
	if w.chance(150) && !p.Chain {
		p.MaxHolds, p.MaxWaits = 1+w.between(0, 4), 1+w.between(0, 4)
		p.UserHolds, p.UserWaits = int(p.MaxHolds)*p.Clients/2, int(p.MaxWaits)*p.Clients/2
	}
	if w.chance(150) {
		p.Out = 256 << w.pick(4)
	}
	if w.chance(100) && !p.Calm {
		p.MaxHold = []int64{100 * ms, sec, 5 * sec}[w.pick(3)]
	}
	if w.chance(100) && !p.Chain {
		p.Tenure = []int64{50 * ms, 500 * ms}[w.pick(2)]
	}
	if p.Habits = 1 + w.pick(4); w.chance(400) && p.Tenure == 0 {
		p.Linger, p.Pause = []int64{50 * ms, 500 * ms, 2 * sec}[w.pick(3)],
			[]int64{-1, sec, 30 * sec}[w.pick(3)]
	}
	if p.Store != likeEmbedded && w.chance(200) && !p.Chain {
		p.Local, p.LocalAfter = true, []int64{1, 500 * ms, 2 * sec}[w.pick(3)]
		p.Many = 0 // see ManyApart
	}
	if w.chance(400) { // also in calm runs, because no client may notice a takeover
		p.Faults[hostTakeover] = []int64{sec, 5 * sec, 30 * sec}[w.pick(3)]
	}
	if !p.Calm {
		w.newFaults(&p)
		if w.chance(300) {
			p.Faults[operator] = []int64{sec / 2, 5 * sec, 25 * sec}[w.pick(3)]
			p.Faults[clientPause] = max(p.Faults[clientPause], 10*sec)
		}
	}
	w.pace(&p, length)
	if w.chance(500) {
		for range 1 + w.pick(2) {
			p.Semaphores = append(p.Semaphores, 1+w.pick(4))
		}
		p.Permits = []int{200, 500, 900}[w.pick(3)]
	}
	if w.chance(650) && !p.Chain {
		w.newNamespaces(&p)
	}
	if w.chance(300) && !p.OneShard {
		p.OneShard, p.Wakes = true, w.pick(3)
	}
	newPairProfile(&p, w.seed)
	newStallProfile(&p, w.seed)
	newExtras(&p, w.seed)
	return p
}

// newNamespaces gives a run several stores and namespaces, and reloads.
func (w *World) newNamespaces(p *Profile) {
	kinds := []storeKind{likeRedis, likeRedis, likeEtcd, likeEtcd, likeEmbedded}
	for range w.pick(4) {
		kind := kinds[w.pick(len(kinds))]
		if kind != likeEmbedded || p.Store != likeEmbedded && !slices.Contains(p.More, likeEmbedded) {
			p.More = append(p.More, kind)
		}
	}
	p.Namespaces, p.Wakes = 1+w.pick(4), w.pick(4)
	p.Faults[hostReload] = []int64{300 * ms, sec, 5 * sec, 20 * sec}[w.pick(4)]
	if w.chance(300) {
		p.Heartbeat = []int64{2 * sec, 6 * sec}[w.pick(2)]
		if !p.Calm {
			p.Faults[clientSilent] = []int64{2 * sec, 10 * sec}[w.pick(2)]
		}
		// Sessions have several readers of several keys, which all end when a machine resumes.
		if !p.Calm && w.chance(500) {
			p.Keys, p.Owners, p.Shared, p.Together, p.Hold, p.OneShard, p.Wakes = 4+w.pick(5), 3, 800, 800,
				1500*ms, true, 1
			p.Faults[hostSuspend] = 5 * sec
		}
	}
	if w.chance(200) {
		p.MaxWait = []int64{100 * ms, 3 * sec}[w.pick(2)]
	}
	if w.chance(200) {
		p.NamespaceLimit = 1 + w.pick(6)
	}
	if w.chance(300) {
		p.Users = 2 + w.pick(2)
	}
	if w.chance(200) && !p.Calm && p.MaxHold == 0 {
		p.MaxHold = []int64{100 * ms, sec, 5 * sec}[w.pick(3)]
	}
	if w.chance(300) && p.LocalAfter == 0 {
		p.Local, p.LocalAfter, p.Many = true, []int64{1, 500 * ms, 2 * sec}[w.pick(3)], 0
	}
}

// pace sets how often clients act, so that each run has about the intended number of events.
func (w *World) pace(p *Profile, length int64) {
	p.Hold = []int64{5 * ms, 50 * ms, 300 * ms, 1500 * ms}[w.pick(4)]
	n := int64(p.Hosts * p.Clients)
	p.Act = n * length / 2200
	if p.Store == likeEmbedded { // no batches on a wire
		p.Act = n * length / 5500
	}
}

// paceEvery is the interval at which a run checks its pace. paceLeast is the number of events that
// it should have had in each interval.
const (
	paceEvery = 30 * sec
	paceLeast = 1200
)

// quicken has clients act more often if too little happens.
func (w *World) quicken() {
	if w.events < int((w.now-epoch)/paceEvery)*paceLeast {
		w.p.Act = w.p.Act * 2 / 3
	}
	w.after(paceEvery, w.quicken)
}

// newFaults draws the kinds of faults that a run has, and how often they occur.
func (w *World) newFaults(p *Profile) {
	some := []int64{10 * sec, 25 * sec, 60 * sec, 120 * sec}
	rare := []int64{45 * sec, 120 * sec, 240 * sec}
	every := func(f fault, permille int, of []int64) {
		if w.chance(permille) {
			p.Faults[f] = of[w.pick(len(of))]
		}
	}
	per := func(f fault, permille int, of ...int64) {
		if w.chance(permille) {
			p.Faults[f] = of[w.pick(len(of))]
		}
	}
	every(hostFreeze, 400, some)
	every(hostSuspend, 300, some)
	every(hostFreezeMid, 300, some)
	every(hostKill, 350, rare)
	every(hostDrain, 250, rare)
	per(hostLag, 300, 5, 30)
	every(clientPause, 400, some)
	every(clientKill, 400, some)
	every(clientLeave, 400, some)
	every(clientUnresponsive, 250, some)
	every(clientFlood, 150, rare)
	every(clientGarbage, 150, rare)
	if p.Store == likeEmbedded {
		every(storePause, 200, some) // a slow disk
		every(storeRefuse, 200, rare)
		return
	}
	every(partition, 400, some)
	per(lostRequest, 350, 5, 30)
	per(lostReply, 350, 5, 30)
	per(lateRequest, 300, 5, 30)
	per(doubled, 300, 5, 30)
	per(cut, 300, 5, 30)
	per(slowReply, 300, 10, 60)
	per(hintLost, 300, 100, 1000)
	per(hintLate, 300, 100, 500)
	per(hintDoubled, 300, 200)
	every(storePause, 300, some)
	every(storeRefuse, 250, rare)
	every(storeReadOnly, 200, rare)
	every(storeRestart, 250, rare)
	switch p.Store {
	case likeRedis:
		every(storeFlush, 150, rare)
		every(storeLoss, 150, rare)
		every(clockForward, 100, rare)
		every(clockBack, 150, rare)
	case likeEtcd:
		every(sessionEnd, 300, rare)
	}
}
