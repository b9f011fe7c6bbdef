package page

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/locksidecar/locksidecar/daemon/engine"
	"github.com/locksidecar/locksidecar/protocol"
)

// kind says how a part is shown. Kinds without a name here are classes of the style sheet.
type kind string

const (
	plain kind = ""
	small kind = "small" // details
	label kind = "mark"  // an unusual property
	link  kind = "link"  // to the page of a key
	name  kind = "name"  // a text that someone else has chosen
	short kind = "short" // a shortened text; Title is the full one
	bar   kind = "bar"   // Text is the percentage, Title the class
)

// part is a piece of a cell.
type part struct {
	Kind              kind
	Text, Title, Href string
}

// table is a list of the page.
type table struct {
	ID, Title, Note, None string
	Heads                 []head
	Rows                  []row
}

// row has one cell for each head. A cell is a list of parts.
type row struct {
	Class string
	Cells [][]part
}

func (t *table) add(class string, cells ...[]part) { t.Rows = append(t.Rows, row{class, cells}) }

// head is the heading of a column. Sorted is the value of aria-sort.
type head struct{ Name, Href, Sorted string }

// column is a column that can be sorted. sort is one of ViewSorts, or empty; falls is true if that
// order has the largest values first.
type column struct {
	name, sort string
	falls      bool
}

func (p *Page) heads(columns ...column) (hs []head) {
	for _, c := range columns {
		h := head{Name: c.name}
		if c.sort != "" {
			v := p.values("sort", c.sort)
			v.Del("desc")
			if c.sort == p.Query.Sort {
				h.Sorted = "ascending"
				if c.falls != p.Query.Desc {
					h.Sorted = "descending"
				}
				if !p.Query.Desc {
					v.Set("desc", "true")
				}
			}
			h.Href = "./" + encoded(v)
		}
		hs = append(hs, h)
	}
	return hs
}

// columns returns headings without an order.
func columns(names ...string) (hs []head) {
	for _, n := range names {
		hs = append(hs, head{Name: n})
	}
	return hs
}

func text(s string) []part { return []part{{Text: s}} }

// tables returns the tables of the page.
func (p *Page) tables() []*table {
	if p.Query.Key != "" {
		return []*table{p.keyHolders(), p.keyQueue(), p.losses()}
	}
	list := []*table{p.waiters(), p.holds(), p.stores()}
	if len(p.Waiters) == 0 {
		list[0], list[1] = list[1], list[0]
	}
	if len(p.Namespaces) > 1 {
		list = append(list, p.namespaces())
	}
	return append(list, p.sessions(), p.losses())
}

var permit = protocol.Permit.String()

// mode returns the marks of a mode.
func mode(mode string) []part {
	if mode == protocol.Exclusive.String() {
		return nil
	}
	return []part{{Kind: label, Text: mode}}
}

func (p *Page) key(key, of string) []part {
	return append([]part{{Kind: link, Text: key, Href: p.keyLink(key)}}, mode(of)...)
}

func who(w *engine.ViewWho) []part {
	return []part{{Kind: name, Text: clientOf(w)}, {Kind: small, Text: whoIs(w)}}
}

// shortened is how many of its last digits a fence is shown with.
const shortened = 6

func fence(n uint64) []part {
	if n == 0 {
		return text("–")
	}
	s := strconv.FormatUint(n, 10)
	if len(s) <= shortened+1 {
		return text(s)
	}
	return []part{{Kind: short, Text: "…" + s[len(s)-shortened:], Title: s}}
}

// left shows how much time a hold has left.
func left(h *engine.ViewHold) []part {
	percent := max(0, min(100, h.Left*100/max(1, h.TTL)))
	class := ""
	if h.Late() {
		class = critical
	}
	return []part{{Text: duration(h.Left)}, {Kind: bar,
		Text: strconv.FormatInt(percent, 10), Title: class}}
}

// marks returns the unusual properties of a hold.
func marks(h *engine.ViewHold) (list []part) {
	list = mode(h.Mode)
	for _, m := range []struct {
		is   bool
		text string
		kind kind
	}{{h.Class != "", h.Class, label}, {h.Fixed && !h.Detached, "fixed", label}, {h.Degraded, "degraded", warning},
		{h.Forced, "unlocked by force", warning},
		{h.Late(), "late", critical}} {
		if m.is {
			list = append(list, part{Kind: m.kind, Text: m.text})
		}
	}
	return list
}

// group has the shown holds of one lock or semaphore.
type group struct {
	*engine.ViewHold // the first, in the order of the page
	clients          []*engine.ViewHold
}

// groups groups the holds by key, in the order of the first of each.
func (p *Page) groups() (list []*group) {
	type id struct {
		key    string
		permit bool
	}
	at := map[id]*group{}
	for i := range p.Holds {
		h := &p.Holds[i]
		k := id{h.Key, h.Mode == permit}
		g := at[k]
		if g == nil {
			g = &group{ViewHold: h}
			at[k] = g
			list = append(list, g)
		}
		g.clients = append(g.clients, h)
	}
	return list
}

// named is the number of holders that a row names.
const named = 3

// holders names the holders of a group.
func (g *group) holders() (list []part) {
	if len(g.clients) == 1 {
		return who(&g.ViewWho)
	}
	noun := "reader"
	if g.Mode == permit {
		noun = "permit"
	}
	list = []part{{Text: count(len(g.clients), noun) + ":"}}
	for i, h := range g.clients[:min(named, len(g.clients))] {
		if i > 0 {
			list = append(list, part{Kind: small, Text: "·"})
		}
		list = append(list, part{Kind: name, Text: clientOf(&h.ViewWho)})
	}
	if more := len(g.clients) - named; more > 0 {
		list = append(list, part{Kind: small, Text: "and " + grouped(more) + " more"})
	}
	return list
}

func waiting(n int32) []part {
	if n == 0 {
		return text("0")
	}
	return []part{{Kind: warning, Text: grouped(n)}}
}

func (p *Page) holds() *table {
	t := &table{ID: "holds", Title: "Locks", Note: p.shown(len(p.Holds), p.More.Holds),
		None: p.none("Nothing is held", " under such a key"),
		Heads: p.heads(column{"Key", "key", false}, column{name: "Holders"}, column{"Held", "age", true},
			column{"Left", "left", false},
			column{"Waiters", "waiters", true}, column{name: "Fence"})}
	for _, g := range p.groups() {
		class := ""
		if g.Forced {
			class = "forced"
		}
		key := append(p.key(g.Key, "exclusive"), marks(g.ViewHold)...)
		t.add(class, key, g.holders(), text(duration(g.Held)), left(g.ViewHold), waiting(g.Waiters),
			fence(g.Fence))
	}
	return t
}

func (p *Page) waiters() *table {
	t := &table{ID: "waiters", Title: "Contended keys", Note: p.shown(len(p.Waiters), p.More.Waiters),
		None:  p.none("No client waits", " for such a key"),
		Heads: columns("Key", "Waiters", "Longest wait", "Next", "Held by")}
	for _, q := range p.queues() {
		longest := text(duration(q.longest))
		if q.longest >= longWait.Milliseconds() {
			longest = []part{{Kind: warning, Text: duration(q.longest)}}
		}
		t.add("", p.key(q.key, q.mode), text(grouped(q.waiters)), longest, who(&q.first.ViewWho),
			behind(q.first))
	}
	return t
}

// behind names a holder of the lock that w waits for.
func behind(w *engine.ViewWaiter) []part {
	switch {
	case w.Behind != nil:
		return who(w.Behind)
	case w.Holder == nil:
		return text("–")
	}
	return holder(w.Holder)
}

func holder(h *protocol.Holder) []part {
	list := []part{{Kind: name, Text: h.String()}}
	if h.Held >= 0 {
		list = append(list, part{Kind: small, Text: "for " + duration(h.Held)})
	}
	return list
}

func (p *Page) stores() *table {
	t := &table{ID: "stores", Title: "Stores",
		Heads: columns("Store", "State", "Leases", "Connections", "Renewals",
			"Left at renewal", "In flight")}
	for _, up := range []bool{false, true} {
		for i := range p.Stores {
			if s := &p.Stores[i]; s.Up == up {
				t.addStore(s)
			}
		}
	}
	return t
}

func (t *table) addStore(s *engine.ViewStore) {
	state := []part{{Kind: good, Text: "up"}}
	if !s.Up {
		state = []part{{Kind: critical, Text: "down"}, {Kind: name, Text: s.Error}}
	}
	connections := "–"
	if s.Connections >= 0 {
		connections = strconv.Itoa(s.Connections)
	}
	renewals := text(grouped(s.Renewed))
	if s.NotHeld > 0 || s.Unanswered > 0 {
		renewals = append(renewals, part{Kind: warning,
			Text: fmt.Sprintf("%s not held, %s unanswered", grouped(s.NotHeld), grouped(s.Unanswered))})
	}
	slack := text(duration(s.Slack))
	if s.Late >= lateRenewal.Milliseconds() {
		slack = append(slack, part{Kind: critical, Text: duration(s.Late) + " late"})
	}
	t.add("", []part{{Kind: name, Text: s.Name}, {Kind: small, Text: s.Kind + ", " + s.Safety}}, state,
		text(grouped(s.Leases)), text(connections),
		renewals, slack, text(fmt.Sprintf("%s, %s queued", batches(s.Flying), grouped(s.Queued))))
}

func (p *Page) namespaces() *table {
	t := &table{ID: "namespaces", Title: "Namespaces",
		Heads: columns("Keys", "Store", "Held", "Waiting", "Lost")}
	for i := range p.Namespaces {
		n := &p.Namespaces[i]
		keys := []part{{Kind: link, Text: n.Prefix + "…", Href: p.link("prefix", n.Prefix)}}
		if n.Prefix == "" {
			keys = text("all other keys")
		}
		lost := text(grouped(n.Lost))
		if n.Lost > 0 {
			lost = []part{{Kind: warning, Text: grouped(n.Lost)}}
		}
		t.add("", keys, []part{{Kind: name, Text: n.Store}}, text(grouped(n.Held)),
			text(grouped(n.Waiting)), lost)
	}
	return t
}

func (p *Page) sessions() *table {
	t := &table{ID: "sessions", Title: "Sessions", Note: p.shown(len(p.Sessions), p.More.Sessions),
		None:  "No client is connected.",
		Heads: columns("Client", "Connected for", "Holds", "Waits", "Last request")}
	for i := range p.Sessions {
		s := &p.Sessions[i]
		heard := "–"
		if s.Heard >= 0 {
			heard = duration(s.Heard) + " ago"
		}
		t.add("", who(&s.ViewWho), text(duration(s.Since)), text(grouped(s.Holds)),
			text(grouped(s.Waiters)), text(heard))
	}
	return t
}

func (p *Page) losses() *table {
	t := &table{ID: "lost", Title: "Lost locks",
		Note: fmt.Sprintf("Of the last %d that were lost since the daemon started.", p.MaxLost),
		None: "None was lost.", Heads: columns("Key", "Ago", "Reason", "Holder", "Held for", "Fence")}
	for i := range p.Lost {
		l := &p.Lost[i]
		ago := part{Kind: short, Text: duration(p.At.Sub(l.At).Milliseconds()),
			Title: l.At.UTC().Format(utc)}
		t.add("", p.key(l.Key, l.Mode), []part{ago},
			[]part{{Kind: warning, Text: strings.ReplaceAll(l.Reason, "_", " ")}}, who(&l.ViewWho),
			text(duration(l.Held)), fence(l.Fence))
	}
	return t
}

const utc = "2006-01-02T15:04:05Z"

// none returns the text of an empty list.
func (p *Page) none(text, filtered string) string {
	if p.filtered() {
		text += filtered
	}
	return text + "."
}

// keyState says where the query's key is held.
func (p *Page) keyState() []part {
	switch {
	case len(p.Holds) > 0:
		list := []part{{Text: "Held on this host,"}, {Kind: name, Text: p.Host}}
		if p.Holder != nil && p.Holder.Kind != protocol.HolderHere {
			list = append(append(list, part{Text: ", and by"}), holder(p.Holder)...)
		}
		return list
	case p.Holder != nil && p.Holder.Kind != protocol.HolderHere:
		return append([]part{{Text: "Held by"}}, holder(p.Holder)...)
	}
	return text("No host is known to hold it.")
}

func (p *Page) keyHolders() *table {
	t := &table{ID: "holds", Title: "Holders on this host", None: "No client of this host holds it.",
		Heads: columns("Client", "Mode", "Held", "Left", "Fence", "Owner")}
	for i := range p.Holds {
		h := &p.Holds[i]
		t.add("", who(&h.ViewWho), append(text(h.Mode), marks(h)[len(mode(h.Mode)):]...),
			text(duration(h.Held)), left(h), fence(h.Fence),
			text(strconv.FormatUint(h.Owner, 10)))
	}
	return t
}

func (p *Page) keyQueue() *table {
	t := &table{ID: "waiters", Title: "Queue on this host",
		None:  "No client of this host waits for it.",
		Heads: columns("Place", "Client", "Mode", "Waited", "Gives up in")}
	for i := range p.Waiters {
		w := &p.Waiters[i]
		end := "never"
		if w.Left >= 0 {
			end = duration(w.Left)
		}
		t.add("", text(grouped(w.Place)), who(&w.ViewWho), text(w.Mode),
			text(duration(w.Waited)), text(end))
	}
	return t
}

func batches(n int) string {
	if n == 1 {
		return "1 batch"
	}
	return grouped(n) + " batches"
}
