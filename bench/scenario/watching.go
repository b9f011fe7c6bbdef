package scenario

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/bench/harness"
	"github.com/locksidecar/locksidecar/bench/load"
)

// This scene measures what it costs to be observed. Four daemons run side by side; in each row,
// only one of them is used.

// The ways of being observed, which are in the names of rows.
const (
	unwatched = "nobody watches"
	scraped   = "scraped each second"
	audited   = "audit to a file, and scraped"
	traced    = "every acquire traced"
)

const sampled = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

// watched is a daemon, and the way in which it is observed.
type watched struct {
	*Daemon
	way string
	log *os.File
}

func beingWatched(e *Env) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	sink := &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
	})}
	var wg sync.WaitGroup
	wg.Go(func() { _ = sink.Serve(l) })
	defer wg.Wait()
	defer sink.Close()
	r, err := e.redis()
	if err != nil {
		return err
	}
	defer r.Stop()
	for _, on := range []struct{ scene, upstream string }{{"watching embedded", "memory:"},
		{"watching redis", "redis://" + r.Addr}} {
		if err := e.watch(on.scene, on.upstream, "http://"+l.Addr().String()); err != nil {
			return err
		}
	}
	return nil
}

// watch measures all ways on one store.
func (e *Env) watch(scene, upstream, sink string) error {
	var rows []row
	for _, way := range []string{unwatched, scraped, audited, traced} {
		w, err := e.watched(way, upstream, sink)
		if err != nil {
			return err
		}
		defer w.stop(e, scene)
		rows = append(rows, row{way, func() (*harness.Outcome, error) { return e.watchedRun(w) }, nil})
	}
	if err := e.interleave(scene, rows); err != nil {
		return err
	}
	rep := e.Report
	for _, way := range []string{scraped, audited, traced} {
		rate, cpu := rep.Ratio(scene, way, unwatched, "ops_s"),
			rep.Ratio(scene, way, unwatched, "server_cpu_us_op")
		if way == traced { // callers ask for each trace, so its cost has no limit here
			rep.Limit(scene+", "+way+": pairs/s, to "+unwatched, rate)
			rep.Limit(scene+", "+way+": the daemon's CPU a pair, to "+unwatched, cpu)
			continue
		}
		rep.AtLeast(scene+", "+way+": pairs/s, to "+unwatched, rate, 0.9, 0)
		rep.Limit(scene+", "+way+": the daemon's CPU a pair, to "+unwatched, cpu)
	}
	return nil
}

func (e *Env) watched(way, upstream, sink string) (*watched, error) {
	var flags, env []string
	switch way {
	case audited:
		flags = []string{"--log-audit", "--log-level", "info", "--log-format", "json"}
	case traced:
		env = []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + sink}
	}
	socket, args, err := e.serving(upstream, flags)
	if err != nil {
		return nil, err
	}
	log, err := os.OpenFile(filepath.Join(filepath.Dir(socket), "log"),
		os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	p, err := harness.StartLogged(log, env, e.daemonBin, args...)
	if err == nil {
		err = p.AwaitSocket(socket)
	}
	if err != nil {
		log.Close()
		return nil, err
	}
	return &watched{&Daemon{p, socket}, way, log}, nil
}

func (w *watched) stop(e *Env, scene string) {
	e.stop(scene, w.Daemon)
	w.log.Close()
	os.Remove(w.log.Name())
}

// watchedRun runs one row, with scrapes all the time.
func (e *Env) watchedRun(w *watched) (*harness.Outcome, error) {
	if err := w.log.Truncate(0); err != nil { // the log must not fill the disk
		return nil, err
	}
	args := load.PairsArgs{Addr: w.Socket, Callers: 64, TTL: redisTTL}
	if w.way == traced {
		args.Trace = sampled
	}
	ctx, done := context.WithCancel(e.Ctx)
	var wg sync.WaitGroup
	var failed error
	if w.way == scraped || w.way == audited {
		wg.Go(func() { failed = scrapeEach(ctx, w.Daemon, time.Second) })
	}
	o, err := e.fleet(load.Sidecar, args, 1, harness.Watch{Server: w.PID()}).Run()
	done()
	wg.Wait()
	if err == nil {
		err = failed
	}
	return o, err
}

// scrapeEach scrapes until ctx ends.
func scrapeEach(ctx context.Context, d *Daemon, pause time.Duration) error {
	s := newScraper(d)
	defer s.close()
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for {
		if err := s.once(ctx); err != nil && ctx.Err() == nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}
