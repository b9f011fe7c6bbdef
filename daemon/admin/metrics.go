package admin

import (
	"fmt"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/protobuf/proto"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/daemon/engine"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/upstream"
)

// metrics is a collector that reads Totals at each scrape, so that the daemon counts nothing twice
// and serving locks needs no lookup. Every series exists from the start. Keys and owners are never
// labels.
type metrics struct {
	daemon  Daemon
	version string
}

// Registry returns a registry with a daemon's metrics and the metrics of its process.
func Registry(d Daemon, version string) *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(metrics{d, version}, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("locksidecar_"+name, help, labels, nil)
}

// The metrics of each class of a namespace's keys.
var (
	ofClass = []string{"namespace", "class"}

	descAcquires = desc("acquires_total",
		"Acquires that have ended.", append(ofClass, "result")...)
	descWait = desc("wait_seconds",
		"How long granted acquires have waited, except re-entries.", ofClass...)
	descHold = desc("hold_seconds",
		"How long locks were held.", ofClass...)
	descContended = desc("contended_total",
		"Acquires, except tries, that waited for another holder.", ofClass...)
	descHandoffs = desc("handoffs_total",
		"Grants without a request to the store, because the lease was on this host.", ofClass...)
	descLingered = desc("lingered_total",
		"The handoffs of leases that had no hold.", ofClass...)
	descDegraded = desc("degraded_total",
		"Grants by this host alone, without a fence, while the store was down.", ofClass...)
	descReleases = desc("releases_total",
		"Holds that ended and had not been lost before. If the store had forgotten the lease, "+
			"lost_total counts the hold, too.", append(ofClass, "cause")...)
	descLost = desc("lost_total",
		"Holds that were lost. If the store had forgotten the lease of a hold that was released, "+
			"releases_total counts the hold, too.", append(ofClass, "reason")...)
	descHeld    = desc("held_locks", "Present holds.", ofClass...)
	descWaiters = desc("waiters", "Acquires that wait at present.", ofClass...)
)

// The metrics of each store.
var (
	descUp = desc("store_up",
		"1 while the store answers; 0 while the circuit breaker is open.", "store")
	descConnections = desc("upstream_connections",
		"Connections to the store.", "store")
	descLeases = desc("held_leases",
		"Leases that this host has at the store.", "store")
	descMoved = desc("moved_leases",
		"Leases that this host has at the store although their keys are at another store now.", "store")
	descRenewals = desc("renewals_total",
		"Renewals of leases.", "store", "result")
	descSlack = desc("renewal_slack_seconds",
		"The time that a lease had left when its renewal was answered.", "store")
	descLate = desc("renewal_late_seconds",
		"For how long the most urgent renewal has been due; 0 if none is due.", "store")
	descTTL = desc("shortest_ttl_seconds",
		"The shortest TTL of the store's namespaces, or the TTL of its session if that is shorter.",
		"store")
	descExpired = desc("expired_leases_total",
		"Leases that reached their deadline.", "store")
	descSizes = desc("upstream_batch_operations",
		"Operations in a batch.", "store", "lane")
	descTook = desc("upstream_batch_seconds",
		"How long a batch took.", "store", "lane")
	descFlying = desc("upstream_batches_in_flight",
		"Batches that the store has not answered yet.", "store", "lane")
	descQueued = desc("upstream_queued_operations",
		"Operations that wait for the next batch.", "store", "lane")
)

// The metrics of the daemon.
var (
	descSessions = desc("sessions", "Connected clients.")
	descOldest   = desc("oldest_hold_seconds",
		"For how long the oldest hold has been held; 0 without any.")
	descCycles    = desc("wait_cycles_total", "Cycles of owners that wait for each other.")
	descThrottled = desc("throttled_seconds_total",
		"Total delay of requests from users over their request rate.")
	descFaults = desc("protocol_errors_total",
		"Sessions that the daemon has ended, and connections that it has refused, by code.", "code")
	descBuild = desc("build_info", "1.", "version", "goversion")
)

// Describe sends nothing, because the series depend on the configuration, which can change.
func (metrics) Describe(chan<- *prometheus.Desc) {}

// Collect sends all metrics.
func (m metrics) Collect(out chan<- prometheus.Metric) {
	t := m.daemon.Totals()
	s := series{out}
	for i := range t.Classes {
		s.class(&t.Classes[i])
	}
	for i := range t.Stores {
		s.store(&t.Stores[i])
	}
	s.gauge(descSessions, float64(t.Sessions))
	s.gauge(descOldest, seconds(t.Oldest))
	s.counter(descCycles, t.Cycles)
	s.out <- prometheus.MustNewConstMetric(descThrottled, prometheus.CounterValue,
		seconds(t.Throttled))
	for _, c := range []protocol.Code{protocol.BadFrame, protocol.BadVersion, protocol.TooSlow,
		protocol.Limit} {
		s.counter(descFaults, t.Faults[c], c.String())
	}
	s.gauge(descBuild, 1, m.version, runtime.Version())
}

func seconds(nanos int64) float64 { return float64(nanos) / float64(time.Second) }

type series struct{ out chan<- prometheus.Metric }

func (s series) gauge(d *prometheus.Desc, v float64, labels ...string) {
	s.out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}

func (s series) counter(d *prometheus.Desc, v uint64, labels ...string) {
	s.out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
}

func (s series) class(c *engine.ClassTotals) {
	ns := engine.NamespaceLabel(c.Prefix)
	for o, name := range engine.ResultLabels {
		n := c.Acquires[o]
		if int(o) < len(c.Refused) {
			n += c.Refused[o]
		}
		s.counter(descAcquires, n, ns, c.Class, name)
	}
	for why, name := range engine.CauseLabels {
		s.counter(descReleases, c.Releases[why], ns, c.Class, name)
	}
	for why := protocol.LostExpired; int(why) < len(c.Lost); why++ {
		if why == protocol.LostFixed {
			continue // counted as a release
		}
		s.counter(descLost, c.Lost[why], ns, c.Class, why.String())
	}
	s.counter(descContended, c.Contended, ns, c.Class)
	s.counter(descHandoffs, c.Handoffs, ns, c.Class)
	s.counter(descLingered, c.Lingered, ns, c.Class)
	s.counter(descDegraded, c.Degraded, ns, c.Class)
	s.gauge(descHeld, float64(c.Holds), ns, c.Class)
	s.gauge(descWaiters, float64(c.Waiters), ns, c.Class)
	s.histogram(descWait, &c.Wait, ns, c.Class)
	s.histogram(descHold, &c.Hold, ns, c.Class)
}

func (s series) store(t *engine.StoreTotals) {
	up := 0.0
	if t.Up {
		up = 1
	}
	s.gauge(descUp, up, t.Name)
	if t.Connections >= 0 {
		s.gauge(descConnections, float64(t.Connections), t.Name)
	}
	s.gauge(descLeases, float64(t.Held), t.Name)
	s.gauge(descMoved, float64(t.Moved), t.Name)
	s.counter(descRenewals, t.Renewed, t.Name, "renewed")
	s.counter(descRenewals, t.NotHeld, t.Name, "not_held")
	s.counter(descRenewals, t.Unanswered, t.Name, "unanswered")
	s.histogram(descSlack, &t.Slack, t.Name)
	s.gauge(descLate, t.Late.Seconds(), t.Name)
	if t.TTL > 0 {
		s.gauge(descTTL, t.TTL.Seconds(), t.Name)
	}
	s.counter(descExpired, t.Expired, t.Name)
	s.lane(&t.Main, t.Name, "main")
	s.lane(&t.Renewals, t.Name, "renewals")
}

func (s series) lane(l *upstream.LaneStats, labels ...string) {
	s.gauge(descFlying, float64(l.InFlight), labels...)
	s.gauge(descQueued, float64(l.Waiting), labels...)
	s.histogram(descTook, &l.Took, labels...)
	sizes, count := make(map[float64]uint64, len(l.Sizes)), uint64(0)
	for i, n := range l.Sizes {
		count += n
		sizes[float64(int(1)<<i)] = count
	}
	s.out <- prometheus.MustNewConstHistogram(descSizes, count, float64(l.Ops), sizes, labels...)
}

func (s series) histogram(d *prometheus.Desc, h *cache.Histogram, labels ...string) {
	s.out <- &histogram{d, h, labels}
}

// histogram is a metric with native buckets, and with classic buckets that are computed from them.
type histogram struct {
	desc   *prometheus.Desc
	of     *cache.Histogram
	labels []string
}

func (h *histogram) Desc() *prometheus.Desc { return h.desc }

// Write implements prometheus.Metric.
func (h *histogram) Write(m *dto.Metric) error {
	shell := prometheus.MustNewConstMetric(h.desc, prometheus.UntypedValue, 0, h.labels...)
	if err := shell.Write(m); err != nil { // the labels
		return fmt.Errorf("write %v: %w", h.desc, err)
	}
	m.Untyped = nil
	m.Histogram = &dto.Histogram{
		SampleCount: proto.Uint64(h.of.Count()), SampleSum: proto.Float64(seconds(h.of.Sum)),
		Schema: proto.Int32(cache.HistSchema), ZeroThreshold: proto.Float64(zeroTo),
		ZeroCount: proto.Uint64(h.of.Zero),
	}
	h.classic(m.Histogram)
	h.native(m.Histogram)
	return nil
}

// zeroTo is the upper bound of the zero bucket, in seconds.
const zeroTo = 1.0 / (1 << 20)

// classic writes a classic bucket for every eight native ones. Each bound is four times the last
// one.
func (h *histogram) classic(m *dto.Histogram) {
	count, le := h.of.Zero, zeroTo
	m.Bucket = append(m.Bucket, &dto.Bucket{CumulativeCount: proto.Uint64(count),
		UpperBound: proto.Float64(le)})
	for i, n := range h.of.Buckets {
		count += n
		if end := cache.HistFirst + i; end%8 == 0 && end <= classicTo {
			le *= 4
			m.Bucket = append(m.Bucket, &dto.Bucket{CumulativeCount: proto.Uint64(count),
				UpperBound: proto.Float64(le)})
		}
	}
}

// classicTo gives the bound of the last classic bucket before +Inf: 4096 seconds.
const classicTo = 12 * 4

// native writes the native buckets in the form of the format: spans of buckets, and the differences
// of their counts.
func (h *histogram) native(m *dto.Histogram) {
	last, gap := int64(0), int32(cache.HistFirst)
	var span *dto.BucketSpan
	for _, n := range h.of.Buckets {
		if n == 0 {
			gap++
			span = nil
			continue
		}
		if span == nil {
			span = &dto.BucketSpan{Offset: proto.Int32(gap), Length: proto.Uint32(0)}
			m.PositiveSpan = append(m.PositiveSpan, span)
			gap = 0
		}
		*span.Length++
		m.PositiveDelta = append(m.PositiveDelta, int64(n)-last)
		last = int64(n)
	}
	if len(m.PositiveSpan) == 0 && h.of.Zero == 0 { // else it would count as a classic histogram
		m.PositiveSpan = []*dto.BucketSpan{{Offset: proto.Int32(0), Length: proto.Uint32(0)}}
	}
}
