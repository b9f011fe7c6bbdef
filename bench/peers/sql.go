package main

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"time"

	_ "github.com/go-sql-driver/mysql" // the driver of its name

	"github.com/locksidecar/locksidecar/bench/load"
)

// sqlPool is what people do with their database: a lock is a row that they insert,
// and delete again, each by a statement that commits by itself, on the connections of
// one pool.
type sqlPool struct {
	db  *sql.DB
	ttl time.Duration
}

const (
	poolConns = 16
	rowTable  = "CREATE TABLE IF NOT EXISTS pool (name VARBINARY(512) NOT NULL PRIMARY KEY, owner VARBINARY(64) NOT NULL, ends DATETIME(6) NOT NULL) ENGINE=InnoDB"
	rowInsert = "INSERT INTO pool VALUES (?, ?, UTC_TIMESTAMP(6) + INTERVAL ? SECOND)"
	rowDelete = "DELETE FROM pool WHERE name = ? AND owner = ?"
)

// openSQLPool has the driver put arguments into the text, so that a statement is one
// round trip; prepared ones are as fast.
func openSQLPool(a *load.PairsArgs) (load.Locker, error) { return newSQLPool(a, "") }

// newSQLPool opens a pool whose sessions have further settings.
func newSQLPool(a *load.PairsArgs, settings string) (*sqlPool, error) {
	db, err := sql.Open("mysql", "root@tcp("+a.Addr+")/locks?interpolateParams=true"+settings)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(poolConns)
	db.SetMaxIdleConns(poolConns)
	if _, err := db.Exec(rowTable); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &sqlPool{db, a.TTL}, nil
}

func (p *sqlPool) Lock(ctx context.Context, _ int, key string) (func(context.Context) error, error) {
	owner := rand.Text()
	if _, err := p.db.ExecContext(ctx, rowInsert, key, owner, p.ttl.Seconds()); err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		r, err := p.db.ExecContext(ctx, rowDelete, key, owner)
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
