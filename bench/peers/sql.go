package main

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"time"

	_ "github.com/go-sql-driver/mysql" // the driver mysql
	_ "github.com/jackc/pgx/v5/stdlib" // the driver pgx

	"github.com/locksidecar/locksidecar/bench/load"
)

// sqlPool is what people do with their database. A lock is a row that a statement inserts, and
// another one deletes. Each statement commits by itself, on the connections of one pool.
type sqlPool struct {
	db             *sql.DB
	ttl            time.Duration
	insert, delete string
}

const (
	poolConns = 16
	rowTable  = "CREATE TABLE IF NOT EXISTS pool (name VARBINARY(512) NOT NULL PRIMARY KEY, owner VARBINARY(64) NOT NULL, ends DATETIME(6) NOT NULL) ENGINE=InnoDB"
	rowInsert = "INSERT INTO pool VALUES (?, ?, UTC_TIMESTAMP(6) + INTERVAL ? SECOND)"
	rowDelete = "DELETE FROM pool WHERE name = ? AND owner = ?"

	postgresTable  = "CREATE TABLE IF NOT EXISTS pool (name text PRIMARY KEY, owner text NOT NULL, ends timestamptz NOT NULL)"
	postgresInsert = "INSERT INTO pool VALUES ($1, $2, clock_timestamp() + $3 * interval '1 second')"
	postgresDelete = "DELETE FROM pool WHERE name = $1 AND owner = $2"
)

// openSQLPool makes the driver put arguments into the text, so that a statement takes one round
// trip. Prepared statements are as fast.
func openSQLPool(a *load.PairsArgs) (load.Locker, error) { return newSQLPool(a, "") }

// newSQLPool opens a pool whose sessions have additional settings.
func newSQLPool(a *load.PairsArgs, settings string) (*sqlPool, error) {
	return newPool("mysql", "root@tcp("+a.Addr+")/locks?interpolateParams=true"+settings, rowTable,
		rowInsert, rowDelete, a.TTL)
}

// openPostgresPool is like openSQLPool, for PostgreSQL. Statements are prepared once for each
// connection.
func openPostgresPool(a *load.PairsArgs) (load.Locker, error) {
	return newPool("pgx", "postgres://postgres@"+a.Addr+"/postgres?sslmode=disable", postgresTable,
		postgresInsert, postgresDelete, a.TTL)
}

func newPool(driver, source, table, insert, remove string, ttl time.Duration) (*sqlPool, error) {
	db, err := sql.Open(driver, source)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(poolConns)
	db.SetMaxIdleConns(poolConns)
	if _, err := db.Exec(table); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &sqlPool{db, ttl, insert, remove}, nil
}

func (p *sqlPool) Lock(ctx context.Context, _ int,
	key string) (func(context.Context) error, error) {
	owner := rand.Text()
	if _, err := p.db.ExecContext(ctx, p.insert, key, owner, p.ttl.Seconds()); err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		r, err := p.db.ExecContext(ctx, p.delete, key, owner)
		if err != nil {
			return err
		}
		if n, err := r.RowsAffected(); err != nil || n != 1 {
			return errors.Join(err, errNotHeld)
		}
		return nil
	}, nil
}

func (p *sqlPool) Close() error { return p.db.Close() }
