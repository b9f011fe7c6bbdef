package etcd

import (
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// permitPart is what a transaction about semaphores asks once for all steps of one.
type permitPart struct {
	counts map[*sem]int // planPut: where the answers about a semaphore begin
	shared map[ask]int  // reads: likewise
}

// ask is a question about a semaphore.
type ask struct {
	sem  *sem
	what question
}

type question uint8

const (
	howMany  question = iota // hold permits, and queue
	inOrder                  // the same, with those that queue by name
	stranger                 // how many hold permits, and whether other hosts queue
	holders                  // how many hold permits
)

// ifValue says that a key has that value.
func ifValue(key, value string) *pb.Compare {
	return &pb.Compare{Key: []byte(key), Target: pb.Compare_VALUE, Result: pb.Compare_EQUAL,
		TargetUnion: &pb.Compare_Value{Value: []byte(value)}}
}

// valueOp reads one key.
func valueOp(key string) *pb.RequestOp { return rangeOp(&pb.RangeRequest{Key: []byte(key)}) }

func namesOp(from, to string, limit int64) *pb.RequestOp {
	return rangeOp(&pb.RangeRequest{Key: []byte(from), RangeEnd: []byte(to), KeysOnly: true, Limit: limit})
}

func countDir(dir string) *pb.RequestOp { return countOp(dir, dirEnd(dir)) }
func listDir(dir string) *pb.RequestOp  { return namesOp(dir, dirEnd(dir), 0) }

// ownEnd is the first key behind those of ours in dir.
func (m *sem) ownEnd(dir string) string {
	end := []byte(dir + m.own)
	end[len(end)-1]++
	return string(end)
}

// strangers reads whether other hosts queue: a key before all of ours, or behind.
func (m *sem) strangers() []*pb.RequestOp {
	return ops(namesOp(m.queue, m.queue+m.own, 1), namesOp(m.ownEnd(m.queue), dirEnd(m.queue), 1))
}

// permitRequest is the part of a transaction that carries out st. Nothing is removed
// but by the token's value, as another token's key may have the name by now.
func (st *step) permitRequest(lease int64) *pb.TxnRequest {
	p := st.g.permit
	switch st.plan {
	case planPut:
		t := &pb.TxnRequest{Compare: one(ifCreated(st.key, 0)), Success: ops(putOp(st.key, p.value, lease))}
		if st.queued {
			t.Success = append(t.Success, deleteOp(p.place))
		}
		return t
	case planQueue:
		return &pb.TxnRequest{Compare: []*pb.Compare{ifCreated(p.place, 0), ifCreated(st.key, 0)},
			Success: ops(putOp(p.place, p.value, lease))}
	case planBack:
		return &pb.TxnRequest{Compare: one(ifValue(st.key, p.value)),
			Success: ops(deleteOp(st.key), putOp(p.place, p.value, lease))}
	case planEnd:
		return &pb.TxnRequest{Compare: one(ifValue(st.key, p.value)), Success: ops(deleteOp(st.key)),
			Failure: ops(txnOp(&pb.TxnRequest{Compare: one(ifValue(p.place, p.value)), Success: ops(deleteOp(p.place))}))}
	default: // planSettle
		return &pb.TxnRequest{Success: ops(valueOp(st.key), valueOp(p.place))}
	}
}

// permitParts divides steps about semaphores into transactions.
func (b *batch) permitParts(parts []part, steps []step, limit part) []part {
	var puts, ends, reads []step
	for _, st := range steps {
		switch {
		case st.plan >= planRenew:
			reads = append(reads, st)
		case b.apart && st.plan != planEnd:
			puts = append(puts, st)
		default:
			ends = append(ends, st)
		}
	}
	for _, w := range [][]step{ends, puts, reads} {
		for len(w) > 0 {
			p := limit
			p.about = &permitPart{counts: map[*sem]int{}, shared: map[ask]int{}}
			w = p.fill(w)
			parts = append(parts, p)
		}
	}
	return parts
}

// fill takes into p what fits, at least one step, and returns the rest. The permits
// of a semaphore that are created together must differ in their bases.
func (p *part) fill(w []step) (rest []step) {
	type birth struct {
		sem  *sem
		slot int
	}
	born := map[birth]bool{}
	room, bytes := int(p.most)-depth-1, p.bytes
	for _, st := range w {
		use, m, size := 1, (*sem)(nil), int64(8*len(st.key)+6*len(st.dir)+400)
		if st.g != nil {
			m = st.g.permit.sem
		}
		birth := birth{m, 0}
		switch {
		case st.plan == planPut:
			birth.slot = st.g.permit.slot & (1<<slotBits - 1)
			if _, counted := p.about.counts[m]; !counted {
				use += 2
			}
		case st.plan >= planRenew:
			use = 5 // at most
		}
		if room < use && len(p.steps) > 0 || bytes < size && len(p.steps) > 0 || st.plan == planPut && born[birth] {
			rest = append(rest, st)
			continue
		}
		if st.plan == planPut {
			born[birth], p.about.counts[m] = true, 0
		}
		if st.plan == planPlace && (st.join || st.queued) {
			p.about.shared[ask{m, inOrder}] = 0
		}
		if st.plan >= planRenew {
			use = p.reading(&st)
		}
		room, bytes, p.steps = room-use, bytes-size, append(p.steps, st)
	}
	return rest
}

// reading is how many operations more a step that reads needs at most.
func (p *part) reading(st *step) int {
	switch st.plan {
	case planPlace:
		return p.share(st, howMany, 2)
	case planKeep:
		return 1 + p.share(st, stranger, 3)
	case planStill:
		return 2 + p.share(st, holders, 1)
	}
	return 1
}

// share is how many operations a question takes, unless it is asked already.
func (p *part) share(st *step, what question, n int) int {
	a := ask{st.g.permit.sem, what}
	if _, asked := p.about.shared[a]; asked {
		return 0
	}
	p.about.shared[a] = 0
	return n
}

// counts adds how many hold permits and queue, behind what all steps do: from that
// follows how many there were before each.
func (p *part) counts(all []*pb.RequestOp) []*pb.RequestOp {
	for m := range p.about.counts {
		p.about.counts[m] = len(all)
		all = append(all, countDir(m.held), countDir(m.queue))
	}
	return all
}

// permitReads are the reads of a transaction.
func (p *part) permitReads() []*pb.RequestOp {
	var all []*pb.RequestOp
	order := map[*sem]bool{}
	for a := range p.about.shared {
		order[a.sem] = order[a.sem] || a.what == inOrder
	}
	clear(p.about.shared)
	shared := func(m *sem, what question) {
		if _, asked := p.about.shared[ask{m, what}]; asked {
			return
		}
		p.about.shared[ask{m, what}] = len(all)
		all = append(all, countDir(m.held))
		switch {
		case what == holders:
		case what == stranger:
			all = append(all, m.strangers()...)
		case order[m]:
			all = append(all, listDir(m.queue))
		default:
			all = append(all, countDir(m.queue))
		}
	}
	for i := range p.steps {
		st := &p.steps[i]
		switch st.plan {
		case planPlace:
			shared(st.g.permit.sem, howMany)
		case planKeep:
			shared(st.g.permit.sem, stranger)
		case planStill:
			shared(st.g.permit.sem, holders)
		}
		p.at = append(p.at, len(all))
		all = append(all, st.permitReads()...)
	}
	return all
}

// permitReads are the reads of st alone.
func (st *step) permitReads() []*pb.RequestOp {
	switch st.plan {
	case planStill:
		return ops(getOp(st.g.permit.place), getOp(st.pred))
	case planHeld, planKeep:
		return ops(getOp(st.key))
	case planRank:
		return ops(listDir(st.dir))
	case planAny:
		return ops(namesOp(st.dir, dirEnd(st.dir), 1))
	}
	return nil // planPlace
}
