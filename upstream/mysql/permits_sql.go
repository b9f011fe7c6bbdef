package mysql

import (
	"slices"
	"strconv"
	"strings"

	"github.com/locksidecar/locksidecar/cache"
)

// never is an end that is never reached.
const never = "9223372036854775807"

var maxBase = strconv.FormatUint(cache.MaxBase, 10)

// permitsText holds the statements of one Store about permits. Their user variables:
//
//	@now           the time
//	@waiter_lease  the length of a queue entry
//
//	of the semaphore that the statements work on
//	@name          its name
//	@expired       whether any of its permits and queue entries may have ended
//	@held          the number of held permits
//	@waits         the number of queued tokens
//	@turn          the last place in the queue that was used
//	@fence         the last fence base, and @base the next one
//	@ends          a time before which no permit or queue entry ends
//
//	of its releases
//	@freed         the number of permits that they release
//	@withdrawn     the number of queue entries that they remove
//
//	of one acquire
//	@token @limit @ttl
//	@place         its place in the queue, or 0 of a permit; NULL without either
//	@place_ends    the end of the permit or queue entry
//	@granted       1 if it gets a permit, 0 if not, -1 if bases are used up
//
// A user variable in a condition acts like a number: it does not change during a statement.
type permitsText struct {
	table                   string // in back quotes
	begin, end              string
	load                    [3]string // the parts between them differ by semaphore
	decide                  string
	give, join, save        string
	released, given, joined settlement
	contended, peeked       string
}

// newPermitsText returns the statements. compound is for servers that can skip statements without
// work and roll back by themselves after an error.
func newPermitsText(table, instance string, compound bool) *permitsText {
	table = "`" + table + "`"
	w := strings.NewReplacer("{table}", table, "{columns}", permitColumns, "{never}", never,
		"{max}", maxBase)
	p := &permitsText{table: table, begin: "START TRANSACTION;",
		contended: contendedSem(table, instance), peeked: firstEnd(table)}
	clear, values, rule, rank := clearSem, " SELECT {values} FROM DUAL WHERE {when}", decidePermit,
		"IF(@place IS NULL,@waits,"+placesBefore+")"
	p.decide = "SET @granted=" + strings.ReplaceAll(rule, "{before}", rank) + ";"
	p.give = strings.NewReplacer("{values}", giveValues, "{when}",
		"@granted>0").Replace(writePermit+values+giveChange) + leavePermit
	p.join = strings.NewReplacer("{values}", joinValues, "{when}",
		joinWhen).Replace(writePermit + values + joinChange)
	if compound {
		p.begin = "BEGIN NOT ATOMIC DECLARE EXIT HANDLER FOR SQLEXCEPTION " +
			"BEGIN ROLLBACK;RESIGNAL;END;" + p.begin
		p.end = "END;"
		clear = "IF @expired THEN " + clear + "END IF;"
		p.decide = "IF @place>0 THEN " + strings.ReplaceAll("SET @granted="+rule, "{before}",
			placesBefore) + ";" +
			"ELSE SET @granted=" + strings.ReplaceAll(rule, "{before}", "@waits") + ";END IF;"
		p.give = "IF @granted>0 THEN " + writePermit + " VALUES (" + giveValues + ")" + giveChange +
			"ELSEIF @granted=0 AND @place>0 THEN " + leavePermit + "END IF;"
		p.join = "IF " + joinWhen + " THEN " + writePermit + " VALUES (" + joinValues + ")" +
			joinChange + "END IF;"
	}
	p.decide, p.give, p.join = w.Replace(p.decide), w.Replace(p.give), w.Replace(p.join)
	copy(p.load[:], strings.Split(w.Replace(loadSem+clear), "|"))
	p.settlements()
	return p
}

// The statements that change rows name the primary key as their index. Otherwise the server would
// scan all rows of a small table and wait for the locked rows of other semaphores. For the same
// reason, DELETE has the form for several tables, which can name an index, and conditions use
// place+0, which no index has. A semaphore's own row has the token ~, which sorts after all others.
// So a scan of its rows ends at a row that the transaction has locked already, not at the next
// semaphore's row.
const (
	loadSem = "SELECT name,ends<=@now,held,waits,ends,fence,turn,GREATEST(fence+1,@now,|) INTO " +
		"@name,@expired,@held,@waits,@ends,@fence,@turn,@base FROM {table} FORCE INDEX (PRIMARY) " +
		"WHERE token='~' AND name=|;"

	// clearSem deletes the ended rows and counts again, once any row may have ended.
	clearSem = "SELECT " +
		"IF(@expired,COUNT(IF(place=0,1,NULL)),@held)," +
		"IF(@expired,COUNT(IF(place>0,1,NULL)),@waits)," +
		"IF(@expired,IFNULL(MIN(ends),{never}),@ends) " +
		"INTO @held,@waits,@ends FROM {table} FORCE INDEX (PRIMARY) WHERE name=@name AND " +
		"token<IF(@expired,x'7e',x'') AND ends>@now;DELETE q FROM {table} q FORCE INDEX " +
		"(PRIMARY) WHERE name=@name AND token<IF(@expired,x'7e',x'') AND ends<=@now;"

	// decidePermit is the complete rule for granting a permit: 1 if it is granted, 0 if not, and -1
	// if bases are used up.
	decidePermit = "IF(@base>{max},-1,IF(@place=0,1,IF(@held>=@limit,0,@held+{before}<@limit)))"
	placesBefore = "(SELECT COUNT(*) FROM {table} FORCE INDEX (queue) WHERE name=@name AND " +
		"place>0 AND place<@place)"

	writePermit = "INSERT INTO {table} ({columns})"
	giveValues  = "@name,@token,0,@now+@ttl,@base,@limit,0,0,0"
	giveChange  = " ON DUPLICATE KEY UPDATE " +
		"place=0,ends=GREATEST(ends,VALUES(ends)),fence=VALUES(fence),most=VALUES(most);"
	leavePermit = "DELETE q FROM {table} q FORCE INDEX (PRIMARY) WHERE name=@name AND " +
		"token=@token AND @granted=0 AND @place>0;"

	joinWhen = "@granted>0 OR @granted=0 AND (@place IS NULL OR " +
		"@place_ends-@now<=@waiter_lease*2/3)" // a place that lasts long enough does not change
	joinValues = "@name,@token,IF(@granted>0,0,@turn+1)," +
		"@now+IF(@granted>0,@ttl,@waiter_lease),IF(@granted>0,@base,0),@limit,0,0,0"
	joinChange = " ON DUPLICATE KEY UPDATE " +
		"place=IF(VALUES(place)=0,0,place),ends=GREATEST(ends,VALUES(ends))," +
		"fence=VALUES(fence),most=VALUES(most);"
)

// settlement has the statement after a release, a try or a join: set if more ops of the same
// semaphore follow, else save.
type settlement struct{ set, save string }

func (p *permitsText) settlements() {
	held := "@held+IF(@granted>0 AND (@place IS NULL OR @place>0),1,0)"
	p.save = p.settle("@held", "@waits", "@turn", "@ends", "@fence", "@base").save
	p.released = p.settle("@held-@freed", "@waits-@withdrawn", "@turn", "@ends", "@fence", "@base")
	p.given = p.settle(held, "@waits-IF(@granted>=0 AND @place>0,1,0)", "@turn",
		"IF(@granted>0 AND @place IS NULL,LEAST(@ends,@now+@ttl),@ends)",
		"IF(@granted>0,@base,@fence)", "@base+1")
	p.joined = p.settle(held,
		"@waits+IF(@granted=0 AND @place IS NULL,1,0)-IF(@granted>0 AND @place>0,1,0)",
		"@turn+IF(@granted=0 AND @place IS NULL,1,0)",
		"IF(@granted>=0 AND @place IS NULL,LEAST(@ends,@now+IF(@granted>0,@ttl,@waiter_lease)),@ends)",
		"IF(@granted>0,@base,@fence)", "@base+1")
}

func (p *permitsText) settle(held, waits, turn, ends, fence, base string) settlement {
	return settlement{
		"SET @held=" + held + ",@waits=" + waits + ",@turn=" + turn + ",@ends=" + ends + ",@fence=" +
			fence + ",@base=" + base + ";",
		"UPDATE " + p.table + " FORCE INDEX (PRIMARY) SET held=" + held + ",waits=" + waits + ",turn=" +
			turn + ",ends=" + ends + ",fence=" + fence +
			" WHERE name=@name AND token='~';",
	}
}

// tokens adds (token,…).
func (t *text) tokens(items []*permit) { addList(t, items, func(it *permit) { t.token(it.token) }) }

// semaphores calls do for the items of each semaphore. The items are sorted.
func semaphores(items []*permit, do func(same []*permit)) {
	for from, i := 0, 1; i <= len(items); i++ {
		if i == len(items) || items[i].name != items[from].name {
			do(items[from:i])
			from = i
		}
	}
}

// stages returns the items of one semaphore in the stages a to b.
func stages(same []*permit, a, b stage) []*permit {
	from, to := 0, len(same)
	for from < to && same[from].stage < a {
		from++
	}
	for to > from && same[to-1].stage > b {
		to--
	}
	return same[from:to]
}

// lockSems makes the missing rows of semaphores and locks all of them in the order of their names.
// Every change of a semaphore requires this lock. The column ends of a new row makes loadSem count
// the semaphore, because only this row may have been deleted.
func (t *text) lockSems(sql *permitsText, items []*permit) {
	t.add("INSERT INTO " + sql.table + " (" + permitColumns + ") VALUES ")
	sep := "("
	semaphores(items, func(same []*permit) {
		t.add(sep).hex(same[0].name).add(",'~',-1,0,0,0,0,0,0)")
		sep = ",("
	})
	t.add(" ON DUPLICATE KEY UPDATE place=-1;")
}

// changeSem adds the changes of the items of one semaphore.
func (t *text) changeSem(sql *permitsText, same []*permit) {
	t.renewPermits(sql, stages(same, stageRenew, stageRenew))
	rest := stages(same, stageRelease, stageAcquire)
	if len(rest) == 0 {
		return
	}
	t.loadSem(sql, rest)
	save := sql.save
	if released := stages(rest, stageRelease, stageRelease); len(released) > 0 {
		rest = rest[len(released):]
		t.add("SELECT COUNT(IF(place=0,1,NULL)),COUNT(IF(place>0,1,NULL)) INTO @freed,@withdrawn FROM " +
			sql.table + " FORCE INDEX (PRIMARY) WHERE name=@name AND token IN ")
		t.tokens(released)
		t.add(";DELETE q FROM " + sql.table + " q FORCE INDEX (PRIMARY) WHERE name=@name AND token IN ")
		t.tokens(released)
		t.add(";")
		if save = sql.released.save; len(rest) > 0 {
			t.add(sql.released.set)
			save = sql.save
		}
	}
	for i, it := range rest {
		if it.stage == stageRebase {
			t.rebasePermit(sql, it)
			continue
		}
		after := t.acquirePermit(sql, it)
		if save = after.save; i < len(rest)-1 {
			t.add(after.set)
		}
	}
	t.add(save)
}

// loadSem adds the statements that read the semaphore of items and delete its ended rows.
func (t *text) loadSem(sql *permitsText, same []*permit) {
	var floor uint64
	for _, it := range same {
		floor = max(floor, it.floor)
	}
	t.add(sql.load[0]).num(int64(floor + 1)).add(sql.load[1]).hex(same[0].name).add(sql.load[2])
}

func (t *text) rebasePermit(sql *permitsText, it *permit) {
	t.add("UPDATE " + sql.table + " FORCE INDEX (PRIMARY) SET ends=GREATEST(ends,@now+").
		num(micros(it.op.TTL)).add("),fence=@base WHERE name=@name AND token=").token(it.token)
	t.add(" AND place+0=0 AND ends>@now AND @base<=" + maxBase + ";SET @fence=LEAST(@base," + maxBase +
		"),@base=@base+1;")
}

// renewPermits adds the renewals of one semaphore. They are one statement if all have the same TTL.
func (t *text) renewPermits(sql *permitsText, items []*permit) {
	for len(items) > 0 {
		n := 1
		for n < len(items) && items[n].op.TTL == items[0].op.TTL {
			n++
		}
		t.add("UPDATE " + sql.table + " FORCE INDEX (PRIMARY) SET ends=GREATEST(ends,@now+").
			num(micros(items[0].op.TTL)).add(") WHERE name=").hex(items[0].name).
			add(" AND token IN ")
		t.tokens(items[:n])
		t.add(" AND place+0=0 AND ends>@now;")
		items = items[n:]
	}
}

// acquirePermit adds a try or a join, and returns its settlement.
func (t *text) acquirePermit(sql *permitsText, it *permit) settlement {
	t.add("SELECT MIN(place),MIN(ends),").token(it.token).add(",").num(int64(it.op.Limit)).add(",").
		num(micros(it.op.TTL))
	t.add(" INTO @place,@place_ends,@token,@limit,@ttl FROM " + sql.table +
		" FORCE INDEX (PRIMARY) WHERE name=@name AND token=")
	t.token(it.token).add(";" + sql.decide)
	if it.op.Kind == cache.OpJoin {
		t.add(sql.join)
		return sql.joined
	}
	t.add(sql.give)
	return sql.given
}

// permitRows adds a query for the rows of items.
func (t *text) permitRows(sql *permitsText, items []*permit) {
	t.add("SELECT name,token,place,fence,IFNULL(ends>@now,0) FROM " + sql.table + " FORCE INDEX (PRIMARY) WHERE ")
	or := ""
	semaphores(items, func(same []*permit) {
		t.add(or + "name=").hex(same[0].name).add(" AND token IN ")
		t.tokens(same)
		or = " OR "
	})
}

// semNames adds (name,…) of the items' semaphores. The items are sorted.
func (t *text) semNames(items []*permit) {
	sameName := func(a, b *permit) bool { return a.name == b.name }
	addList(t, slices.CompactFunc(slices.Clone(items), sameName), func(it *permit) { t.hex(it.name) })
}

// sems adds a query for the items' semaphores. contended is the expression for whether another host
// waits. For peeks, the query includes the end of the first permit.
func (t *text) sems(sql *permitsText, items, peeks []*permit, contended string) {
	t.add("SELECT s.name,s.fence,s.waits>0," + contended + ",")
	if len(peeks) > 0 {
		t.add("IF(s.name IN ")
		t.semNames(peeks)
		t.add("," + sql.peeked + ",0)")
	} else {
		t.add("0")
	}
	t.add(" FROM " + sql.table + " s FORCE INDEX (PRIMARY) WHERE s.token='~' AND s.name IN ")
	t.semNames(items)
}

// contendedSem returns the condition that another host than instance's waits for a permit of s and
// none is available to it. It checks the last queue entry of other hosts.
func contendedSem(table, instance string) string {
	return "IF(s.waits>0,IFNULL((SELECT s.held>=q.most OR s.held+" +
		"(SELECT COUNT(*) FROM " + table + " b FORCE INDEX (queue) WHERE b.name=q.name " +
		"AND b.place>0 AND b.place<q.place AND b.ends>@now)>=q.most" +
		" FROM " + table + " q FORCE INDEX (queue) WHERE q.name=s.name AND q.place>0 AND q.ends>@now" +
		" AND (q.token<_binary'" + instance + ".' OR q.token>_binary'" + instance +
		"/') ORDER BY q.place DESC LIMIT 1),0),0)"
}

// firstEnd returns the expression for the end of the first permit of s, or 0 without one.
func firstEnd(table string) string {
	return "IF(s.held>0,IFNULL((SELECT MIN(q.ends) FROM " + table +
		" q FORCE INDEX (PRIMARY) WHERE q.name=s.name AND q.place+0=0 AND q.ends>@now),0),0)"
}

// permitsText returns the statements for the present server.
func (s *Store) permitsText() *permitsText {
	if s.returning.Load() {
		return s.permitsTexts[1]
	}
	return s.permitsTexts[0]
}
