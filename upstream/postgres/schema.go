package postgres

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"hash/crc32"
	"strconv"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream/driverkit"
)

//go:embed sql
var sqlFiles embed.FS

const (
	instanceLen = 22 // of upstream.NewInstance
	// maxEntries is the maximum number of holders, and of waiting hosts, of one lock, because they
	// are in one row.
	maxEntries = 500
	// clock is the server's clock, in µs of UTC.
	clock = "floor(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
	// channel precedes the instance in the name of a notification channel.
	channel = "locksidecar_"
)

// names has the names of the objects in the database, quoted and with their schema.
type names struct {
	locks, entry, daemons, apply string
	schema, function             string // without the schema
	create                       string // the statements that make them
	lockID                       string // of the advisory lock under which they are made
	words                        *strings.Replacer
}

// newNames makes the names and the statements. The function's name has a checksum of its text. So
// hosts of different versions share a table, each with its own function.
func newNames(cfg *Config) names {
	quoted := func(suffix string) string { return `"` + cfg.Table + suffix + `"` }
	n := names{schema: `"` + cfg.Schema + `"`}
	full := func(name string) string { return n.schema + "." + name }
	n.locks, n.entry, n.daemons = full(quoted("")), full(quoted("_entry")), full(quoted("_daemons"))
	milliseconds := func(d time.Duration) string {
		return strconv.FormatInt(max(1, d.Milliseconds()), 10)
	}
	n.words = strings.NewReplacer("{locks}", n.locks, "{entry}", n.entry, "{daemons}", n.daemons,
		"{schema}", n.schema, "{clock}", clock, "{channel}", channel,
		"{instance}", strconv.Itoa(instanceLen), "{most}", strconv.Itoa(maxEntries),
		"{slice}",
		strconv.Itoa(driverkit.PurgeSlice), "{maxbase}", strconv.FormatUint(cache.MaxBase, 10),
		"{lock_timeout}", milliseconds(cfg.lockWait()),
		"{statement_timeout}", milliseconds(cfg.Timeout),
		"{transaction_timeout}", milliseconds(cfg.Timeout+10*time.Second))
	apply := n.sql("apply")
	n.function = quoted(fmt.Sprintf("_apply_%08x", crc32.ChecksumIEEE([]byte(apply))))
	n.apply = full(n.function)
	n.create = n.sql("schema") + "\n" + strings.ReplaceAll(apply, "{apply}", n.apply)
	n.lockID = strconv.Itoa(int(crc32.ChecksumIEEE([]byte(n.locks))))
	return n
}

// sql returns the text of a file in the directory sql with the names filled in.
func (n *names) sql(file string) string {
	b, err := sqlFiles.ReadFile("sql/" + file + ".sql")
	if err != nil {
		panic(err) // the file is part of the program
	}
	return n.words.Replace(string(b))
}

// ofFunction is sql for a file that names the function. The function's own text does not name it,
// because the name has a checksum of the text.
func (n *names) ofFunction(file string) string {
	return strings.Replace(n.sql(file), "{function}", n.function, 1)
}

// call returns the statement that carries out a batch.
func (n *names) call() string {
	return "SELECT * FROM " + n.apply + "($1,$2,$3,$4,$5,$6,$7,$8,$9)"
}

// grants returns the statements that give a user the rights to use existing tables.
func (n *names) grants() string {
	return fmt.Sprintf("GRANT USAGE ON SCHEMA %s TO …; GRANT SELECT, INSERT, UPDATE, DELETE ON %s, %s TO …; "+
		"GRANT EXECUTE ON FUNCTION %s TO …", n.schema, n.locks, n.daemons, n.apply)
}

// These are the columns of our tables, as format_type prints them without schemas.
const (
	lockColumns   = "name text,fence bigint,ends bigint,held entry[],queue entry[]"
	daemonColumns = "id text,entry text,ends bigint"
)

// checkSchema makes the tables and the function if they do not exist, and checks that they are
// ours.
func (s *Store) checkSchema(ctx context.Context, c *conn) error {
	n := &s.names
	for made := false; ; made = true {
		there, err := s.inspect(ctx, c)
		if err != nil || there {
			return err
		}
		if made {
			return fmt.Errorf("%w: table %s has been made in database %s and is not there",
				ErrServer, n.locks, s.cfg.Database)
		}
		// All statements of one Exec are one transaction.
		const alone = "SELECT set_config('lock_timeout', '0', true), pg_advisory_xact_lock(%s); %s"
		err = c.pg.Exec(ctx, fmt.Sprintf(alone, n.lockID, makeType(n))).Close()
		if err == nil {
			continue
		}
		// Another host may have made them with another user.
		if there, again := s.inspect(ctx, c); again == nil && there {
			return nil
		}
		if code(err) == codeNoPrivilege || code(err) == codeNoSchema {
			return fmt.Errorf("%w: the user may not make table %s, its type or its function "+
				"in database %s: %w. "+
				"GRANT CREATE ON SCHEMA %s TO …, or have this run there:\n%s\n%s",
				ErrServer, n.locks, s.cfg.Database, err, n.schema, n.create, n.grants())
		}
		return fmt.Errorf("make table %s: %w", n.locks, err)
	}
}

// makeType returns n.create in a form for a database that may have some of its objects, because
// types have no IF NOT EXISTS.
func makeType(n *names) string {
	create, rest, _ := strings.Cut(n.create, ");")
	const ifMissing = "DO $do$ BEGIN IF to_regtype('%s') IS NULL THEN %s); END IF; END $do$;"
	return fmt.Sprintf(ifMissing, n.entry, create) +
		strings.Replace(rest, "CREATE FUNCTION", "CREATE OR REPLACE FUNCTION", 1)
}

// inspect reports whether the tables and the function exist. It returns an error for tables of
// another kind.
func (s *Store) inspect(ctx context.Context, c *conn) (there bool, err error) {
	n := &s.names
	rows, err := c.query(ctx, n.ofFunction("inspect"))
	if err != nil {
		return false, fmt.Errorf("inspect table %s: %w", n.locks, err)
	}
	if len(rows) != 1 {
		return false, errAnswer
	}
	r := rows[0]
	for i, want := range []struct{ table, columns string }{
		{n.locks, lockColumns}, {n.daemons, daemonColumns}} {
		if have := string(r[i]); have != "" && have != want.columns {
			return false, fmt.Errorf("%w: table %s in database %s has the columns %q, not %q: "+
				"name another table with table=",
				ErrServer, want.table, s.cfg.Database, have, want.columns)
		}
	}
	switch {
	case len(r[0]) == 0 || len(r[1]) == 0 || string(r[2]) == "0":
		return false, nil
	case string(r[3]) != "1":
		return false, fmt.Errorf("%w: table %s in database %s has no valid primary key (name)",
			ErrServer, n.locks, s.cfg.Database)
	case string(r[4]) != "t":
		return false, fmt.Errorf("%w: table %s in database %s is unlogged, temporary, "+
			"partitioned or no table",
			ErrServer, n.locks, s.cfg.Database)
	}
	return true, nil
}

// checkRights checks the user's rights.
func (s *Store) checkRights(ctx context.Context, c *conn) (noDelete bool, err error) {
	n := &s.names
	rows, err := c.query(ctx, n.ofFunction("rights"))
	switch {
	case err != nil:
		return false, fmt.Errorf("%w: check what its user may do: %w", ErrServer, err)
	case len(rows) != 1:
		return false, errAnswer
	case string(rows[0][0]) != "t":
		return false, fmt.Errorf("%w: its user may not SELECT, INSERT and UPDATE in its tables "+
			"or not call its function: %s",
			ErrServer, n.grants())
	}
	return string(rows[0][1]) != "t", nil
}

var errVersion = errors.New("version 12 or later of PostgreSQL is needed")
