package driverkit

import (
	"context"
	"time"

	"go.uber.org/zap"
)

const (
	// FenceLife is the age at which an unused row is deleted, with the fence base that it keeps.
	// The clock alone gives larger bases then, unless it goes back by more than this. The age
	// counts by the server's clock and by this host's, so a server's clock that is ahead for a
	// while deletes nothing early.
	FenceLife = 24 * time.Hour
	// PurgeSlice is the maximum number of rows that one step of a walk reads or deletes.
	PurgeSlice = 500

	slicePause = 2 * time.Second // on average, between two steps
	walkPause  = time.Hour       // between two walks through a table
)

// Purged is the result of one step of a walk through a table.
type Purged struct {
	Next    string // where the next step begins; "" at the end of the table
	Read    int    // rows
	Deleted int64  // rows
	Took    time.Duration
}

// Pause returns how long to wait after a step. elapsed is the time since the walk began. While
// most rows are long unused, the walk has fallen behind and uses half of its connection's time. A
// walk that takes hours doubles its speed each hour: otherwise new rows could keep it from
// reaching the end of the table.
func (p *Purged) Pause(elapsed time.Duration) time.Duration {
	if 2*p.Deleted > int64(p.Read) {
		return p.Took
	}
	return max(p.Took, slicePause>>min(elapsed/time.Hour, 30))
}

// Purge walks through tables in small steps, again and again, until ctx ends. Each function
// carries out one step in its table, which begins after the row named from and deletes what is
// long unused. advice adds what to do to an error. table is for the log.
func Purge(ctx context.Context, log *zap.Logger, table string, advice func(error) error,
	steps ...func(ctx context.Context, from string) (Purged, error),
) {
	from, pause, begun := "", walkPause, time.Now()
	for turn := 0; Sleep(ctx, Jitter(pause)); {
		sent := time.Now()
		if from == "" {
			begun = sent
		}
		p, err := steps[turn%len(steps)](ctx, from)
		p.Took = time.Since(sent)
		switch {
		case err != nil:
			from, pause, turn = "", walkPause, turn+1
			log.Debug("cannot purge the table", zap.String("table", table), zap.Error(advice(err)))
		case p.Next == "":
			from, turn = "", turn+1
			pause = walkPause / time.Duration(len(steps)) // each table is walked once per walkPause
		default:
			from, pause = p.Next, p.Pause(time.Since(begun))
		}
		if p.Deleted > 0 {
			log.Debug("purged rows of locks long unused", zap.Int64("rows", p.Deleted))
		}
	}
}
