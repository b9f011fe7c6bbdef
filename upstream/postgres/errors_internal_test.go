package postgres

import (
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

func TestOnlyCertainErrorsProveThatNothingWasDone(t *testing.T) {
	of := func(severity, code string) error {
		return fmt.Errorf("a batch: %w", &pgconn.PgError{SeverityUnlocalized: severity, Code: code})
	}
	for _, e := range []struct {
		err  error
		want bool
	}{
		{of("ERROR", codeDeadlock), true},
		{of("ERROR", codeCanceled), true},
		{of("FATAL", "57P01"), false},
		{of("PANIC", "XX000"), false},
		{of("", "08P01"), false}, // pgbouncer has no unlocalized severity
		{of("ERROR", "08006"), false},
		{of("ERROR", "08007"), false},
		{of("ERROR", "40003"), false},
		{errors.New("EOF"), false},
	} {
		if got := rolledBack(e.err); got != e.want {
			t.Errorf("%v: %v", e.err, got)
		}
	}
}
