package scenario

import (
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/locksidecar/locksidecar/bench/harness"
	"github.com/locksidecar/locksidecar/bench/load"
)

// What do other clients notice of an abusive client? They are pairs of two callers with keys of
// their own, alone and beside each kind of abuse. The store is the embedded one, where nothing else
// takes time. If the benchmark runs as root, the abuser is another user, and has the limits of a
// user. Otherwise it has the limits of its connections.
//
// In the first part, the daemon limits the rate of a user's requests, and the other clients pause
// between requests, as programs do. They should notice nothing. In the second part, there is no
// such limit and there are no pauses. A user may then use as much of the machine as possible, in
// turns with others, so this shows a limit. A process that only computes shows another limit.

const (
	abuseScene   = "abuse"
	abuseAlone   = "alone"
	abuseCallers = 2
	abusePause   = 2 * time.Millisecond
	abuseRate    = 10_000
	abuseP99     = 2
)

func abuse(e *Env) error {
	if os.Geteuid() != 0 {
		e.Report.Note("abuse: not run as root, so the abuser is the same user as the others.")
	}
	if err := e.abused(true); err != nil {
		return err
	}
	return e.abused(false)
}

// abused measures beside each kind of abuse, with or without a limit on requests per second.
func (e *Env) abused(bounded bool) error {
	args, name := load.WorkArgs{PairsArgs: load.PairsArgs{Callers: abuseCallers, TTL: redisTTL}},
		func(kind string) string { return kind + ", without a bound" }
	flags := []string{"--max-holds", "10000", "--max-waiters", "10000"}
	if os.Geteuid() == 0 {
		flags = append(flags, "--socket-mode", "0666", "--max-user-conns", "64", "--max-user-holds",
			"10000", "--max-user-waiters", "10000")
	}
	if bounded {
		args.Pause, name = abusePause, func(kind string) string { return kind }
		flags = append(flags, "--max-user-rate", strconv.Itoa(abuseRate))
	}
	d, err := e.daemon("memory:", flags...)
	if err != nil {
		return err
	}
	defer e.stop(abuseScene, d)
	for _, dir := range []string{e.Dir, filepath.Dir(d.Socket)} {
		if err := os.Chmod(dir, 0o711); err != nil {
			return err
		}
	}
	args.Addr = d.Socket
	others := func() (*harness.Outcome, error) {
		return e.fleet(load.Sidecar, args, 1, harness.Watch{Server: d.PID()}).Run()
	}
	rows := []row{{name(abuseAlone), others, nil}}
	for _, kind := range load.Abuses {
		rows = append(rows, row{name(kind.Kind), e.beside(kind.Kind, d, others), nil})
	}
	if err := e.interleave(abuseScene, rows); err != nil {
		return err
	}
	for _, kind := range load.Abuses {
		ratio := e.Report.Ratio(abuseScene, name(kind.Kind), name(abuseAlone), "p99_us")
		what := "others' p99 beside " + strconv.Quote(kind.About) + name("") + ", to alone"
		if kind.Kind == "busy" || !bounded {
			e.Report.Limit(what, ratio)
		} else {
			e.Report.AtMost(what, ratio, abuseP99)
		}
	}
	return e.nothingLeft(abuseScene, d, "abuse:")
}

// beside runs others while a client abuses the daemon.
func (e *Env) beside(kind string, d *Daemon, others func() (*harness.Outcome,
	error)) func() (*harness.Outcome, error) {
	return func() (o *harness.Outcome, err error) {
		p, socket, err := e.bare(load.Abuse)
		if err != nil {
			return nil, err
		}
		defer p.Stop()
		end, err := load.OpenAbuse(socket, load.AbuseOrder{Addr: d.Socket, Kind: kind})
		if err != nil {
			return nil, err
		}
		defer end()
		return others()
	}
}
