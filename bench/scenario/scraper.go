package scenario

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
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
	_, _, err := s.get(ctx, "")
	return err
}

func (s scraper) get(ctx context.Context, accept expfmt.Format) ([]byte, http.Header, error) {
	q, err := http.NewRequestWithContext(ctx, "GET", "http://daemon/metrics", nil)
	if err != nil {
		return nil, nil, err
	}
	if accept != "" {
		q.Header.Set("Accept", string(accept))
	}
	r, err := s.tr.RoundTrip(q)
	if err != nil {
		return nil, nil, fmt.Errorf("scrape: %w", err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode != http.StatusOK || len(b) == 0 {
		return nil, nil, fmt.Errorf("scrape: %s, %d bytes, %w", r.Status, len(b), err)
	}
	return b, r.Header, nil
}

// readings has a daemon's metrics by name.
type readings map[string]*dto.MetricFamily

// readings reads all metrics, with native histograms.
func (s scraper) readings(ctx context.Context) (readings, error) {
	b, header, err := s.get(ctx, expfmt.NewFormat(expfmt.TypeProtoDelim))
	if err != nil {
		return nil, err
	}
	all, dec := readings{}, expfmt.NewDecoder(bytes.NewReader(b), expfmt.ResponseFormat(header))
	for {
		f := new(dto.MetricFamily)
		if err := dec.Decode(f); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, fmt.Errorf("read metrics: %w", err)
		}
		all[f.GetName()] = f
	}
}

// read reads a daemon's metrics once.
func (d *Daemon) read(ctx context.Context) (readings, error) {
	s := newScraper(d)
	defer s.close()
	return s.readings(ctx)
}

// sum adds up the series of a metric. If label is not "", it adds up only the series that have a
// label with that value.
func (r readings) sum(name, label string) (sum float64) {
	for _, m := range r[name].GetMetric() {
		has := label == ""
		for _, l := range m.GetLabel() {
			has = has || l.GetValue() == label
		}
		if has {
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return sum
}

// least returns the lower end of the first native bucket with a count; 0 if all are empty. The
// upper end of a bucket is 1.19 times its lower end.
func (r readings) least(name string) float64 {
	least := math.Inf(1)
	for _, m := range r[name].GetMetric() {
		h := m.GetHistogram()
		if h.GetZeroCount() > 0 {
			return 0
		}
		at, n, i := int32(0), int64(0), 0
		for _, span := range h.GetPositiveSpan() {
			at += span.GetOffset()
			for range span.GetLength() {
				if n += h.GetPositiveDelta()[i]; n > 0 {
					least = min(least, math.Exp2(float64(at-1)*math.Exp2(-float64(h.GetSchema()))))
				}
				at, i = at+1, i+1
			}
		}
	}
	if math.IsInf(least, 1) {
		return 0
	}
	return least
}
