package mysql

import (
	_ "embed"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// The lengths of the parts of a row, in bytes. A token is instance.number with the number in base
// 36 and leading zeros. So a search for its text finds only the token itself, never a part of
// another token or of other text in a row.
const (
	instanceLen = 22
	numberLen   = 13 // of the largest uint64
	tokenLen    = instanceLen + 1 + numberLen
	endsLen     = 16 // µs since 1970, until the year 2286
	readerLen   = tokenLen + 1 + endsLen + 1
	placeLen    = 1 + readerLen
	lastLen     = 1 + tokenLen + 1 + numberLen
)

//go:embed table.sql
var tableSQL string

const columns = "name,version,last,fence,owner,ends,queued,readers,queue"

// checkTable makes the table if it does not exist, and checks that it is as the store needs it.
func (s *Store) checkTable(q quick, t *table) error {
	for made := false; ; made = true {
		wrong, there, err := s.inspect(q, t)
		if err != nil {
			return fmt.Errorf("look at table %s: %w", t.name, err)
		}
		if there && wrong == "" {
			return nil
		}
		if there {
			return fmt.Errorf("%w: table %s in database %s is not a table of %s: %s; name "+
				"another with table=, or let this one be made anew: %s",
				ErrServer, t.name, s.cfg.Database, t.of, wrong, t.create)
		}
		if made {
			return fmt.Errorf("%w: table %s has been made in database %s and is not there",
				ErrServer, t.name, s.cfg.Database)
		}
		if _, err := q.rows(t.create); err != nil {
			switch number(err) {
			case erTableDenied, erDBAccessDenied:
				return fmt.Errorf("%w: there is no table %s in database %s (or its user may not "+
					"see it), and the user may not make it. Have this run there:\n%s;\nGRANT "+
					"SELECT, INSERT, UPDATE, DELETE ON `%s`.`%s` TO …;\n(%v)",
					ErrServer, t.name, s.cfg.Database, t.create, s.cfg.Database, t.name, err)
			}
			return fmt.Errorf("make table %s: %w", t.name, err)
		}
	}
}

// column is the required type of a column.
type column struct{ kind, length string }

// table describes a table that the store needs.
type table struct {
	name    string
	of      string // its content, for messages
	list    string // its columns, for a statement
	create  string // the statement that makes it
	columns map[string]column
	keys    [][3]string // each column of a key: the key, the column, whether the key is not unique
}

func locksTable(name string) *table {
	return &table{name: name, of: "locks", list: columns, create: createTable(tableSQL, name),
		columns: lockColumns,
		keys:    [][3]string{{"PRIMARY", "name", "0"}}}
}

// createTable returns the statement that makes a table with this name.
func createTable(sql, name string) string {
	return strings.TrimSpace(strings.NewReplacer("{table}", "`"+name+"`", "{name}",
		strconv.Itoa(nameLen),
		"{token}", strconv.Itoa(tokenLen), "{last}", strconv.Itoa(lastLen)).Replace(sql))
}

var lockColumns = map[string]column{
	"name": {"varbinary", strconv.Itoa(nameLen)}, "version": {"bigint", ""},
	"last": {"varbinary", strconv.Itoa(lastLen)}, "fence": {"bigint", ""},
	"owner": {"varbinary", strconv.Itoa(tokenLen)}, "ends": {"bigint", ""}, "queued": {"bigint", ""},
	"readers": {"mediumblob", ""}, "queue": {"mediumblob", ""},
}

// inspect reports whether the table exists, and what is wrong with it.
func (s *Store) inspect(q quick, t *table) (wrong string, there bool, err error) {
	of := " WHERE table_schema=DATABASE() AND table_name='" + t.name + "'"
	tables, err := q.rows("SELECT table_type,engine,create_options FROM information_schema.tables" +
		of)
	if err != nil || len(tables) == 0 {
		return "", false, err
	}
	switch is := tables[0]; {
	case is[0] != "BASE TABLE":
		return "it is a " + strings.ToLower(is[0]), true, nil
	case is[1] != "InnoDB":
		return "its engine is " + is[1] + ", not InnoDB, without whose row locks two could hold one lock",
			true, nil
	case strings.Contains(is[2], "partitioned"):
		return "it is partitioned", true, nil
	}
	cols, err := q.rows("SELECT column_name,data_type,character_maximum_length,is_nullable," +
		"column_type FROM information_schema.columns" + of)
	if err != nil {
		return "", true, err
	}
	if wrong := wrongColumns(cols, t.columns); wrong != "" {
		return wrong, true, nil
	}
	keys, err := q.rows("SELECT index_name,column_name,non_unique,sub_part " +
		"FROM information_schema.statistics" + of + " ORDER BY non_unique,index_name,seq_in_index")
	if err != nil {
		return "", true, err
	}
	if wrong := wrongKeys(keys, t.keys); wrong != "" {
		return wrong, true, nil
	}
	triggers, err := q.rows("SELECT trigger_name FROM information_schema.triggers " +
		"WHERE event_object_schema=DATABASE() AND event_object_table='" + t.name + "'")
	if len(triggers) > 0 {
		wrong = "it has the trigger " + triggers[0][0]
	}
	return wrong, true, err
}

func wrongColumns(cols [][]string, columns map[string]column) string {
	seen := map[string]bool{}
	for _, c := range cols {
		name := strings.ToLower(c[0])
		want, ok := columns[name]
		switch {
		case !ok:
			return fmt.Sprintf("it has a column %s", c[0])
		case !strings.EqualFold(c[1], want.kind), want.length != "" && c[2] != want.length,
			strings.Contains(c[4], "unsigned"):
			if want.length != "" {
				want.kind += "(" + want.length + ")"
			}
			return fmt.Sprintf("its column %s is %s, not %s", c[0], c[4], want.kind)
		case c[3] != "NO":
			return fmt.Sprintf("its column %s may be NULL", c[0])
		}
		seen[name] = true
	}
	for name := range columns {
		if !seen[name] {
			return "it has no column " + name + " (or the user may not see it)"
		}
	}
	return ""
}

// wrongKeys returns what is wrong with the unique keys, or which other key is missing.
func wrongKeys(keys [][]string, want [][3]string) string {
	var unique, wantUnique []string
	others := map[string]string{}
	for _, k := range keys {
		if k[2] == "0" {
			unique = append(unique, k[0]+" "+k[1]+k[3])
		} else {
			others[k[0]] += k[1] + k[3] + ","
		}
	}
	wantOthers := map[string]string{}
	for _, k := range want {
		if k[2] == "0" {
			wantUnique = append(wantUnique, k[0]+" "+k[1])
		} else {
			wantOthers[k[0]] += k[1] + ","
		}
	}
	if !slices.Equal(unique, wantUnique) {
		var cols []string
		for _, k := range wantUnique {
			cols = append(cols, strings.TrimPrefix(k, "PRIMARY "))
		}
		return "its primary key is not " + strings.Join(cols, ", ") + ", or it has another unique key"
	}
	for name, cols := range wantOthers {
		if others[name] != cols {
			return "it has no key " + name + " (" + strings.ReplaceAll(strings.TrimSuffix(cols, ","),
				",", ", ") + ")"
		}
	}
	return ""
}
