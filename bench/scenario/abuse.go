package scenario

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/locksidecar/locksidecar/bench/harness"
	"github.com/locksidecar/locksidecar/bench/load"
)

// What others notice of a client that means no good: pairs of two callers with keys of their own, alone
// and beside each kind of abuse, on the embedded store, where nothing else takes time. As root the
// abuser is another user, and has a user's limits; else those of its connections.
//
// An abuser takes processor time from the machine before the daemon has done anything; so there is a row
// beside a process that only computes. And there is no limit on requests a second: who may ask gets
// what the daemon has of it, in turn with others.

const (
	abuseCallers = 2
	abuseP99     = 2
)

func abuse(e *Env) error {
	const scene, aloneRow = "abuse", "alone"
	flags := []string{"--max-holds", "10000", "--max-waiters", "10000"}
	if os.Geteuid() == 0 {
		flags = append(flags, "--socket-mode", "0666", "--max-user-conns", "64", "--max-user-holds", "10000", "--max-user-waiters", "10000")
	} else {
		e.Report.Note("abuse: not run as root, so the abuser is the same user as the others.")
	}
	d, err := e.daemon("memory:", flags...)
	if err != nil {
		return err
	}
	defer e.stop(scene, d)
	for _, dir := range []string{e.Dir, filepath.Dir(d.Socket)} {
		if err := os.Chmod(dir, 0o711); err != nil {
			return err
		}
	}
	others := e.pairs(d, load.PairsArgs{Addr: d.Socket, Callers: abuseCallers, TTL: redisTTL}, harness.Watch{})
	rows := []row{{aloneRow, others, nil}}
	for _, kind := range load.Abuses {
		rows = append(rows, row{kind.Kind, e.beside(kind.Kind, d, others), nil})
	}
	if err := e.interleave(scene, rows); err != nil {
		return err
	}
	for _, kind := range load.Abuses {
		ratio := e.Report.Ratio(scene, kind.Kind, aloneRow, "p99_us")
		name := fmt.Sprintf("others' p99 beside %q, to alone", kind.About)
		if kind.Kind == "busy" {
			e.Report.Limit(name, ratio)
		} else {
			e.Report.AtMost(name, ratio, abuseP99)
		}
	}
	return e.nothingLeft(scene, d, "abuse:")
}

// beside runs others while somebody abuses the daemon.
func (e *Env) beside(kind string, d *Daemon, others func() (*harness.Outcome, error)) func() (*harness.Outcome, error) {
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
