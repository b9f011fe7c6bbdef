package both

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/locksidecar/locksidecar/upstream"
)

// Keys are the keys that begin with Prefix and with none of Except.
type Keys struct {
	Prefix string   `json:"prefix"`
	Except []string `json:"except,omitempty"`
}

func (k *Keys) has(key string) bool {
	return strings.HasPrefix(key, k.Prefix) &&
		!slices.ContainsFunc(k.Except, func(p string) bool { return strings.HasPrefix(key, p) })
}

// contains reports whether k has all keys of o.
func (k *Keys) contains(o *Keys) bool {
	return k.has(o.Prefix) && !slices.ContainsFunc(k.Except, o.has)
}

func (k *Keys) equal(o Keys) bool {
	return k.Prefix == o.Prefix && slices.Equal(k.Except, o.Except)
}

// overlaps reports whether some key may be among both k and o.
func (k *Keys) overlaps(o *Keys) bool { return k.has(o.Prefix) || o.has(k.Prefix) }

// common returns the keys that both k and o have. ok is false if there are none.
func (k *Keys) common(o *Keys) (c Keys, ok bool) {
	if c.Prefix = k.Prefix; len(o.Prefix) > len(k.Prefix) {
		c.Prefix = o.Prefix
	}
	if !k.has(c.Prefix) || !o.has(c.Prefix) {
		return c, false
	}
	for _, p := range slices.Concat(k.Except, o.Except) {
		if strings.HasPrefix(p, c.Prefix) {
			c.Except = append(c.Except, p)
		}
	}
	slices.Sort(c.Except)
	c.Except = slices.Compact(c.Except)
	return c, true
}

// rule is an entry of the note. It states that hosts use both stores for some keys, and which store
// decides their fences.
type rule struct {
	Keys
	// Epoch is added to the new store's bases. It is 0 while the old store decides.
	Epoch uint64 `json:"fence_epoch,omitempty"`
}

// note is the text by which hosts with both stores agree on which store decides fences. It is in
// the new store.
type note struct {
	Rules []rule `json:"moving"`
}

// readNote returns the rules of the note, and its version.
func readNote(ctx context.Context, from upstream.Noter) ([]rule, int64, error) {
	text, version, err := from.Note(ctx)
	var n note
	if err == nil && version != 0 {
		if err = json.Unmarshal(text, &n); err != nil {
			err = fmt.Errorf("read the note of hosts with both stores: %w", err)
		}
	}
	return n.Rules, version, err
}

// epochOf returns the highest epoch in the rules of a key. It is 0 while the old store decides the
// key's fences. known reports whether there is a rule.
func epochOf(rules []rule, key string) (epoch uint64, known bool) {
	for i := range rules {
		if rules[i].has(key) {
			epoch, known = max(epoch, rules[i].Epoch), true
		}
	}
	return epoch, known
}

// order decides fences if the new store's bases are its own order. See doc.go.
type order struct {
	note  upstream.Noter
	epoch uint64 // 0 if the old store decides until another host writes a rule with an epoch

	mu      sync.Mutex
	keys    []Keys // this host's keys; guarded by mu
	rules   []rule // the newest rules read; guarded by mu
	version int64  // the version of rules; guarded by mu

	declared []Keys // keys with rules in the note; guarded by mu
	pending  []Keys // keys whose rules settle must write before the first grant; guarded by mu
}

// freshLocked returns the keys that are neither declared nor pending.
func (o *order) freshLocked(keys []Keys) []Keys {
	return without(without(keys, o.declared), o.pending)
}

// checkNote returns an error if cover would have to change the note and the note cannot be read.
func (o *order) checkNote(ctx context.Context, keys []Keys) error {
	o.mu.Lock()
	fresh := o.freshLocked(keys)
	o.mu.Unlock()
	if len(fresh) == 0 {
		return nil
	}
	_, _, err := readNote(ctx, o.note)
	return err
}

// cover sets this host's keys. While the old store decides, it writes a rule for them, which allows
// other hosts to begin the next rollout. A host of that rollout writes a rule by which the new
// store decides from then on. So the note has that rule even if no host acquires a lock before the
// last rollout.
func (o *order) cover(ctx context.Context, keys []Keys) error {
	o.mu.Lock()
	fresh := o.freshLocked(keys)
	o.mu.Unlock()
	if len(fresh) > 0 {
		if err := o.open(ctx, fresh); err != nil {
			return err
		}
	}
	o.mu.Lock()
	o.declared = append(o.declared, fresh...)
	o.mu.Unlock()
	o.coverLater(keys)
	return nil
}

// coverLater is like cover but leaves the rules to settle.
func (o *order) coverLater(keys []Keys) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.keys = keys
	o.pending = without(keys, o.declared)
}

// settle writes the rules of the pending keys into the note.
func (o *order) settle(ctx context.Context) error {
	o.mu.Lock()
	pending := o.pending
	o.mu.Unlock()
	if len(pending) == 0 {
		return nil
	}
	if err := o.open(ctx, pending); err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.declared = append(o.declared, pending...)
	o.pending = without(o.pending, pending)
	return nil
}

// without returns the keys that are not in other.
func without(keys, other []Keys) []Keys {
	return slices.DeleteFunc(slices.Clone(keys), func(k Keys) bool {
		return slices.ContainsFunc(other, k.equal)
	})
}

// open writes the rules of a host's keys into the note.
func (o *order) open(ctx context.Context, keys []Keys) error {
	_, err := o.declare(ctx, func(rules []rule) []rule { return o.opening(rules, keys) })
	return err
}

// opening returns the rules that a host adds before its first grant of keys. If there is a rule of
// an earlier move, the bases decide which rule applies: see missing.
func (o *order) opening(rules []rule, keys []Keys) (add []rule) {
	for i := range keys {
		k := &keys[i]
		if o.epoch == 0 {
			if !slices.ContainsFunc(rules, func(r rule) bool { return r.contains(k) }) {
				add = append(add, rule{Keys: *k})
			}
			continue
		}
		for j := range rules {
			c, ok := k.common(&rules[j].Keys)
			if ok && !slices.ContainsFunc(slices.Concat(rules, add), func(r rule) bool {
				if r.Epoch == o.epoch {
					return r.contains(&c)
				}
				return r.Epoch != 0 && r.overlaps(&c)
			}) {
				add = append(add, rule{c, o.epoch})
			}
		}
	}
	return add
}

// declare adds to the note the rules that missing returns for the present ones, and the known rules
// that the new store has lost. It returns all rules.
func (o *order) declare(ctx context.Context, missing func([]rule) []rule) ([]rule, error) {
	for {
		rules, version, err := readNote(ctx, o.note)
		if err != nil {
			return nil, err
		}
		lost := o.lostRules(rules, version)
		rules = append(rules, lost...)
		add := missing(rules)
		if len(lost)+len(add) == 0 {
			o.mu.Lock()
			o.rules, o.version = rules, version
			o.mu.Unlock()
			return rules, nil
		}
		rules = append(rules, add...)
		text, _ := json.Marshal(note{rules}) // never fails
		ok, err := o.note.SetNote(ctx, text, version)
		if err != nil {
			return nil, err
		}
		if ok {
			return rules, nil // the next read returns them with their version
		}
	}
}

// lostRules returns the known rules that the note of that version does not have. It may have lost
// them, because rules are never removed. Otherwise the note was read before they were written.
func (o *order) lostRules(rules []rule, version int64) (lost []rule) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if version == o.version {
		return nil
	}
	for _, k := range o.rules {
		if !slices.ContainsFunc(rules, func(r rule) bool {
			return r.Epoch == k.Epoch && r.equal(k.Keys)
		}) {
			lost = append(lost, k)
		}
	}
	return lost
}

// sessionLost notes that the new store may have lost the note.
func (o *order) sessionLost() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.declared, o.pending = nil, o.keys
}

// bases has the bases of an acquire that both stores have granted.
type bases struct {
	key      string
	old, new uint64
}

// decide returns the base of each grant, or an error. Both stores have the leases, so no other host
// can be granted the keys meanwhile.
func (o *order) decide(ctx context.Context, grants []bases) (result []uint64, errs []error) {
	result, errs = make([]uint64, len(grants)), make([]error, len(grants))
	if err := o.settle(ctx); err != nil {
		for i := range errs {
			errs[i] = err
		}
		return result, errs
	}
	var again []int // grants that the known rules do not decide
	o.mu.Lock()
	rules := o.rules
	o.mu.Unlock()
	for i := range grants {
		if o.epoch != 0 { // rules are not removed, so one that decides now decides later
			result[i], errs[i] = o.baseOf(rules, &grants[i])
		}
		if o.epoch == 0 || errs[i] != nil {
			again = append(again, i)
		}
	}
	if len(again) == 0 {
		return result, errs
	}
	rules, err := o.declare(ctx, func(rules []rule) []rule {
		return o.missing(rules, grants, again)
	})
	for _, i := range again {
		if errs[i] = err; err == nil {
			result[i], errs[i] = o.baseOf(rules, &grants[i])
		}
	}
	return result, errs
}

// missing returns the rules to add so that the new store decides from now on, for the grants that
// allow it.
func (o *order) missing(rules []rule, grants []bases, of []int) (add []rule) {
	if o.epoch == 0 {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, i := range of {
		g := &grants[i]
		e, known := epochOf(append(slices.Clip(rules), add...), g.key)
		if !known || e >= o.epoch || g.old >= o.epoch || e != 0 && g.old <= e+g.new {
			continue
		}
		n := slices.IndexFunc(o.keys, func(k Keys) bool { return k.has(g.key) })
		r := slices.IndexFunc(rules, func(r rule) bool { return r.has(g.key) })
		if n >= 0 && r >= 0 { // other hosts may have more of these keys in the old store alone
			c, _ := o.keys[n].common(&rules[r].Keys)
			add = append(add, rule{c, o.epoch})
		}
	}
	return add
}

// baseOf returns the base of a grant by these rules.
func (o *order) baseOf(rules []rule, g *bases) (uint64, error) {
	e, known := epochOf(rules, g.key)
	switch {
	case o.epoch == 0 && (e == 0 || g.old > e+g.new):
		return g.old, nil // a rule below the old store's bases belongs to an earlier move
	case o.epoch == 0 && g.old < e, o.epoch != 0 && e == o.epoch && g.old < e:
		return e + g.new, nil
	case o.epoch == 0:
		return 0, fmt.Errorf("%w: the old store's base %d is not below fence_epoch %d of the "+
			"hosts of the next rollout: stop all holders, then change the store with a larger "+
			"fence_epoch",
			ErrFences, g.old, e)
	case !known:
		return 0, fmt.Errorf("%w: no host has used both stores without fence_epoch: every host "+
			"must do so before the first one sets it", ErrFences)
	case g.old >= o.epoch:
		return 0, fmt.Errorf("%w: the old store's base is %d, with fence_epoch %d: raise "+
			"fence_epoch to more than %d on every host that has it",
			ErrFences, g.old, o.epoch, g.old)
	case e > o.epoch || e != 0 && g.old <= e+g.new:
		return 0, fmt.Errorf("%w: fence_epoch is %d here and %d on hosts that have set it "+
			"before: it must be the same on every host", ErrFences, o.epoch, e)
	}
	return 0, fmt.Errorf("%w: %w", ErrFences, errNotCovered)
}

var errNotCovered = errors.New("the key no longer belongs to both stores")

// Rules has the rules in the note of a store. The rules are the agreement of hosts that use this
// store as the new store of a pair.
type Rules struct{ of []rule }

// ReadRules returns the rules in the note of st. A store without a note has none.
func ReadRules(ctx context.Context, st upstream.Store) (Rules, error) {
	from := st.Capabilities().Noter
	if from == nil {
		return Rules{}, nil
	}
	rules, _, err := readNote(ctx, from)
	return Rules{rules}, err
}

// CheckEpoch returns an error if hosts with both stores have a larger fence_epoch than epoch for
// some of keys, or if the old store still decides their fences. epoch is the fence_epoch of this
// host, which uses the new store alone.
func (r Rules) CheckEpoch(keys Keys, epoch uint64) error {
	highest := uint64(0)
	for i := range r.of {
		if c, ok := r.of[i].common(&keys); ok {
			if e, _ := epochOf(r.of, c.Prefix); e == 0 {
				return fmt.Errorf("%w: hosts use both stores for keys that begin with %q, and "+
					"the old store decides their fences: give every host both stores with "+
					"fence_epoch before any has the new store alone; if no host has both any "+
					"more, remove the note from the new store", ErrFences, c.Prefix)
			}
		}
		if r.of[i].overlaps(&keys) {
			highest = max(highest, r.of[i].Epoch)
		}
	}
	if highest > epoch {
		return fmt.Errorf("%w: fence_epoch is %d here, and %d on hosts that have moved keys from "+
			"another store", ErrFences, epoch, highest)
	}
	return nil
}
