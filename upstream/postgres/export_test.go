package postgres

import (
	"context"
	"sync"
)

// Purge walks through the first slice of the table.
func (s *Store) Purge(ctx context.Context) (deleted int64, err error) {
	v, err := s.purge(ctx, "")
	return v.Deleted, err
}

// Setting returns a setting of a connection that is ready for a batch.
func (s *Store) Setting(ctx context.Context, name string) (value string, err error) {
	err = s.aside(ctx, func(c *conn) error {
		rows, err := c.query(ctx, "SELECT current_setting($1)", name)
		if err == nil {
			value = string(rows[0][0])
		}
		return err
	})
	return value, err
}

// LoseSettings undoes the settings of the connection that the next batch uses.
func (s *Store) LoseSettings(ctx context.Context) error {
	return s.aside(ctx, func(c *conn) error { return c.pg.Exec(ctx, "RESET ALL").Close() })
}

// ReadInBackground starts a goroutine that reads on each idle connection, as pgconn does after a
// slow write. The returned function waits for the goroutines. The connections have to be closed
// before.
func (s *Store) ReadInBackground() (wait func()) {
	var wg sync.WaitGroup
	s.pool.mu.Lock()
	defer s.pool.mu.Unlock()
	for _, c := range s.pool.idle {
		started := make(chan struct{})
		wg.Go(func() {
			close(started)
			_, _ = c.socket.Conn.Read(make([]byte, 1))
		})
		<-started
	}
	return wg.Wait
}
