package scenario

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
)

// scraper reads a daemon's metrics as Prometheus does.
type scraper struct{ tr *http.Transport }

func newScraper(d *Daemon) scraper {
	return scraper{&http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", d.Socket+".admin")
	}}}
}

func (s scraper) close() { s.tr.CloseIdleConnections() }

func (s scraper) once(ctx context.Context) error {
	q, err := http.NewRequestWithContext(ctx, "GET", "http://daemon/metrics", nil)
	if err != nil {
		return err
	}
	r, err := s.tr.RoundTrip(q)
	if err != nil {
		return fmt.Errorf("scrape: %w", err)
	}
	defer r.Body.Close()
	if n, err := io.Copy(io.Discard, r.Body); err != nil || r.StatusCode != http.StatusOK || n == 0 {
		return fmt.Errorf("scrape: %s, %d bytes, %w", r.Status, n, err)
	}
	return nil
}
