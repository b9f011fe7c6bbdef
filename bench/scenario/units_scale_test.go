package scenario

import (
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/bench/harness"
)

var (
	writeScale   = flag.Bool("write", false, "TestScale: take the costs from results, and write all tables")
	scaleResults = flag.String("results", "../results/partial/results.json",
		"TestScale: with -write, the results")
)

const (
	costsFile = "../COSTS.md"                 // the costs, and the whole arithmetic
	scaleFile = "../../docs/operate/scale.md" // the rows that operators need
)

// TestScale checks the arithmetic of bench/COSTS.md and docs/operate/scale.md against the costs in
// the former:
//
//	go run ./bench/cmd/bench -only units && go test ./bench/scenario -run Scale -write
//
// reads the costs from a run and writes all tables.
func TestScale(t *testing.T) {
	text := readPage(t, costsFile)
	if *writeScale {
		text = putLines(t, text, "costs", costLines(t, *scaleResults))
	}
	c := readCosts(t, text)
	checkScale(t, costsFile, text, redisScale(c, false), etcdScale(c, false))
	checkScale(t, scaleFile, readPage(t, scaleFile), redisScale(c, true), etcdScale(c, true))
}

func readPage(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// checkScale compares the tables of a file, or writes them.
func checkScale(t *testing.T, file, text string, redis, etcd []string) {
	t.Helper()
	for _, table := range []struct {
		name  string
		lines []string
	}{{"redis", redis}, {"etcd", etcd}} {
		if *writeScale {
			text = putLines(t, text, table.name, table.lines)
		} else if !slices.Equal(linesOf(t, text, table.name), table.lines) {
			t.Errorf("the table %s of %s does not follow from the costs; it would be\n%s", table.name,
				file, strings.Join(table.lines, "\n"))
		}
	}
	if *writeScale {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

var scaleStores = []string{"Redis", "Cluster", "etcd"}

// costLines returns the costs of a run: the machine, and a line for each thing, with one column for
// each store.
func costLines(t *testing.T, path string) []string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var r harness.Report
	if err := json.Unmarshal(b, &r); err != nil {
		t.Fatal(err)
	}
	if len(r.Faults) > 0 || r.Short {
		t.Fatalf("%s has faults, or is of a short run: %q", path, r.Faults)
	}
	var names []string
	cells := map[string]map[string]string{}
	for _, row := range r.Rows {
		store, name, _ := strings.Cut(row.Name, ": ")
		if row.Scene != unitsScene {
			continue
		}
		if cells[name] == nil {
			names, cells[name] = append(names, name), map[string]string{}
		}
		if cpu := r.Values(unitsScene, row.Name, "cpu_us"); len(cpu) > 0 {
			slices.Sort(cpu)
			cells[name][store] = digits(cpu[len(cpu)/2], 3) + " µs"
			if strings.HasSuffix(name, "a second of it") && cpu[len(cpu)-1] < 2 {
				cells[name][store] = "under 2 µs" // nothing more exact is known
				continue
			}
			if low, high := digits(cpu[0], 2), digits(cpu[len(cpu)-1], 2); low != high {
				cells[name][store] += " (" + low + "–" + high + ")"
			}
		} else if bytes := r.Values(unitsScene, row.Name, "bytes"); len(bytes) > 0 {
			cells[name][store] = digits(bytes[0], 3) + " B"
		}
	}
	lines := []string{r.Machine.String(), ""}
	lines = append(lines, tableTop(append([]string{"what"}, "one Redis",
		fmt.Sprintf("cluster of %d", clusterNodes), "etcd")...)...)
	for _, name := range names {
		line := []string{name}
		for _, s := range scaleStores {
			line = append(line, cells[name][s])
		}
		lines = append(lines, tableLine(line...))
	}
	return lines
}

// costs has the costs by store and thing, in seconds of CPU time or in bytes.
type costs struct {
	t  *testing.T
	of map[string]float64
}

func readCosts(t *testing.T, text string) costs {
	t.Helper()
	c := costs{t, map[string]float64{}}
	for _, l := range linesOf(t, text, "costs") {
		cells := strings.Split(strings.Trim(l, "| "), "|")
		if len(cells) < 1+len(scaleStores) && !strings.HasPrefix(l, "| ") {
			continue
		}
		for i, s := range scaleStores[:min(len(scaleStores), len(cells)-1)] {
			f := strings.Fields(cells[i+1])
			if len(f) < 2 {
				continue
			}
			v, err := strconv.ParseFloat(strings.ReplaceAll(f[0], ",", ""), 64)
			if err != nil {
				continue // the head of the table
			}
			if f[1] == "µs" {
				v /= 1e6
			}
			c.of[s+": "+strings.TrimSpace(cells[0])] = v
		}
	}
	return c
}

func (c costs) at(store, name string) float64 {
	v, ok := c.of[store+": "+name]
	if !ok {
		c.t.Errorf("%s has no cost of %q on %s", costsFile, name, store)
	}
	return v
}

// scaleFleet is a number of hosts with the same number of held locks each.
type scaleFleet struct {
	hosts, locks float64
	ttl          time.Duration
}

func (f scaleFleet) all() float64 { return f.hosts * f.locks }

// renewals returns the renewals per second. A lock is due after a third of its TTL less the drift,
// and on average a twentieth of that third earlier (renewer.Schedule).
func (f scaleFleet) renewals() float64 {
	return f.all() / (f.ttl.Seconds() * (1./3 - 1./100 - 1./60))
}

// What the fleets do in addition to holding locks.
const (
	pairsAHost  = 10   // per second
	contendedOf = 0.01 // share of pairs that wait for another host, and of locks that a host waits for
	pollsASec   = 2
	busiest     = 0.5 // share of one core, or of four cores of etcd
	etcdCores   = 4
	mapLooks    = 6. / 30 // per second and host
	connections = 3       // per host and node; there is one more per host
)

func column(f scaleFleet) string {
	return fmt.Sprintf("%s × %s, %s", digits(f.hosts, 3), digits(f.locks, 3),
		strings.NewReplacer("m0s", " min", "s", " s").Replace(f.ttl.String()))
}

func redisScale(c costs, brief bool) []string {
	fleets := []scaleFleet{{1000, 100, 30 * time.Second}, {10000, 100, 30 * time.Second},
		{10000, 100, 5 * time.Minute},
		{10000, 10000, 30 * time.Second}, {10000, 10000, 5 * time.Minute}}
	cluster := func(name string) float64 { return c.at("Cluster", name) }
	renew := func(f scaleFleet) float64 { return f.renewals() * cluster("a renewal, each when it is due") }
	waits := func(f scaleFleet) float64 { return f.all() * contendedOf * pollsASec * cluster(pollRow) }
	pairs := func(f scaleFleet) float64 { return f.hosts * pairsAHost * cluster("a pair, one caller") }
	away := func(f scaleFleet) float64 {
		return f.hosts * pairsAHost * contendedOf * cluster("from host to host, one key")
	}
	looking := func(f scaleFleet) float64 { return f.hosts * mapLooks * cluster("a look at the map of three nodes") }
	masters := func(f scaleFleet) float64 {
		return max(3, math.Ceil((renew(f)+waits(f)+pairs(f)+away(f)+looking(f))/busiest))
	}
	conns := func(f scaleFleet) float64 { return f.hosts*connections + f.hosts/masters(f) }
	cores := func(v float64) string { return digits(v, 2) }
	return scaleTable(fleets, brief, []scaleRow{
		{"locks held", func(f scaleFleet) string { return count(f.all()) }},
		{"their memory", func(f scaleFleet) string { return size(f.all() * cluster("a lock")) }},
		{"renewals a second", func(f scaleFleet) string { return count(f.renewals()) }},
		{"… cores, each sent when it is due", func(f scaleFleet) string { return cores(renew(f)) }},
		{"… cores, were all due at once", func(f scaleFleet) string {
			return cores(f.renewals() * cluster("a renewal, all due at once"))
		}},
		{"… and with one hash tag a host", func(f scaleFleet) string {
			return cores(f.renewals() * cluster("a renewal of one hash tag, all due at once"))
		}},
		{"another host waits for 1 % of them: polls a second", func(f scaleFleet) string {
			return count(f.all() * contendedOf * pollsASec)
		}},
		{"… cores", func(f scaleFleet) string { return cores(waits(f)) }},
		{"10 pairs a second and host: pairs a second", func(f scaleFleet) string {
			return count(f.hosts * pairsAHost)
		}},
		{"… cores, each by itself", func(f scaleFleet) string { return cores(pairs(f)) }},
		{"… 1 % of them from host to host: cores", func(f scaleFleet) string { return cores(away(f)) }},
		{"what the cluster's map is asked for: cores", func(f scaleFleet) string {
			return cores(looking(f))
		}},
		{"**masters**, half a core of each", func(f scaleFleet) string { return count(masters(f)) }},
		{"connections a master", func(f scaleFleet) string { return count(conns(f)) }},
		{"… their memory, silent / in use", func(f scaleFleet) string {
			return size(conns(f)*c.at("Redis", "a connection, silent for some seconds")) + " / " +
				size(conns(f)*c.at("Redis", "a connection, just used"))
		}},
		{"… all made anew, one a host: s of a core", func(f scaleFleet) string {
			return digits(f.hosts*cluster("a connection made and checked"), 2)
		}},
	})
}

func etcdScale(c costs, brief bool) []string {
	fleets := []scaleFleet{{100, 1000, 10 * time.Second}, {1000, 100, 10 * time.Second},
		{10000, 10, 10 * time.Second}, {10000, 100, 10 * time.Second},
		{10000, 100, time.Minute}, {10000, 10000, time.Minute}}
	etcd := func(name string) float64 { return c.at("etcd", name) }
	keep := func(f scaleFleet) float64 { return f.hosts / (f.ttl.Seconds() * (1./3 - 1./60)) }
	look := func(f scaleFleet) float64 { return f.hosts * min(f.locks/(f.ttl.Seconds()/3), 5000) }
	sweep := func(f scaleFleet) float64 { return f.all() / 60 }
	standing := func(f scaleFleet) float64 {
		return keep(f)*etcd("a keep-alive") + look(f)*etcd("a look at a held lock") +
			sweep(f)*etcd("a name in a sweep")
	}
	cores := func(v float64) string { return digits(v, 2) }
	return scaleTable(fleets, brief, []scaleRow{
		{"locks held, a watch each", func(f scaleFleet) string { return count(f.all()) }},
		{"memory (live; twice that with garbage)", func(f scaleFleet) string {
			return size(f.all()*etcd("a lock, with its watch, in memory") +
				f.hosts*etcd("a daemon's connection with its streams"))
		}},
		{"database, of 8 GB", func(f scaleFleet) string {
			return size(f.all() * etcd("a lock, in the database"))
		}},
		{"keep-alives a second", func(f scaleFleet) string { return count(keep(f)) }},
		{"… cores", func(f scaleFleet) string { return cores(keep(f) * etcd("a keep-alive")) }},
		{"looks at held locks a second", func(f scaleFleet) string { return count(look(f)) }},
		{"… cores", func(f scaleFleet) string { return cores(look(f) * etcd("a look at a held lock")) }},
		{"sweeps: names a second", func(f scaleFleet) string { return count(sweep(f)) }},
		{"… cores", func(f scaleFleet) string { return cores(sweep(f) * etcd("a name in a sweep")) }},
		{"**left of 2 busy cores of 4**", func(f scaleFleet) string {
			return cores(max(0, etcdCores*busiest-standing(f)))
		}},
		{"… for pairs a second, in small batches", func(f scaleFleet) string {
			return count(max(0, etcdCores*busiest-standing(f)) / etcd("a pair, one caller"))
		}},
		{"… or in large ones", func(f scaleFleet) string {
			return count(max(0, etcdCores*busiest-standing(f)) / etcd(fmt.Sprintf("a pair, %d callers",
				pairCallers)))
		}},
	})
}

// scaleRow is a line of a table of fleets.
type scaleRow struct {
	name string
	cell func(scaleFleet) string
}

// briefRows are the rows for operators.
var briefRows = []string{
	"their memory", "renewals a second", "**masters**, half a core of each",
	"connections a master", "… their memory, silent / in use",
	"… all made anew, one a host: s of a core",
	"memory (live; twice that with garbage)", "database, of 8 GB",
	"**left of 2 busy cores of 4**", "… for pairs a second, in small batches", "… or in large ones",
}

func scaleTable(fleets []scaleFleet, brief bool, rows []scaleRow) []string {
	head := []string{"hosts × locks, TTL"}
	for _, f := range fleets {
		head = append(head, column(f))
	}
	lines := tableTop(head...)
	for _, r := range rows {
		if brief && !slices.Contains(briefRows, r.name) {
			continue
		}
		line := []string{r.name}
		for _, f := range fleets {
			line = append(line, r.cell(f))
		}
		lines = append(lines, tableLine(line...))
	}
	return lines
}
