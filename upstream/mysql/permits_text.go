package mysql

import (
	_ "embed"
	"strconv"
	"strings"

	"github.com/locksidecar/locksidecar/cache"
)

//go:embed permits.sql
var permitsSQL string

const permitColumns = "name,token,place,ends,fence,most,held,waits,turn"

// never is the end of what does not end.
const never = "9223372036854775807"

var maxBase = strconv.FormatUint(cache.MaxBase, 10)

// permitsText is the statements of one Store about permits. In those about one
// semaphore @k is its name, @n the time, @d whether any of it may have ended, and
// while it is worked on @h how many permits are held, @w how many tokens queue, @t
// the last place given out, @f the last base, @b the next one, and @e a time before
// which nothing of it ends; of an op @o is the token, @l the limit, @y the TTL, @p and
// @x its place and its end, NULL when it has none, and @g whether it is granted. @q is
// how long a place in the queue lasts. A user variable in a condition is as good as a
// number: it does not change while a statement is carried out.
type permitsText struct {
	table                   string // in back quotes
	begin, end              string
	load                    [3]string // between them comes what differs
	decide                  string
	give, join, save        string
	released, given, joined settlement
	wanted, peeked          string
}

// newPermitsText makes the statements. compound is for servers that can be told to
// leave out those that have nothing to do, which would do nothing anyway, and to roll
// back by themselves when one fails.
func newPermitsText(table, instance string, compound bool) *permitsText {
	table = "`" + table + "`"
	w := strings.NewReplacer("{table}", table, "{columns}", permitColumns, "{never}", never, "{max}", maxBase)
	p := &permitsText{table: table, begin: "START TRANSACTION;", wanted: wantedSem(table, instance), peeked: firstEnd(table)}
	clear, values, rule, rank := clearSem, " SELECT {values} FROM DUAL WHERE {when}", decidePermit, "IF(@p IS NULL,@w,"+placesBefore+")"
	p.decide = "SET @g=" + strings.ReplaceAll(rule, "{before}", rank) + ";"
	p.give = strings.NewReplacer("{values}", giveValues, "{when}", "@g>0").Replace(writePermit+values+giveChange) + leavePermit
	p.join = strings.NewReplacer("{values}", joinValues, "{when}", joinWhen).Replace(writePermit + values + joinChange)
	if compound {
		p.begin, p.end = "BEGIN NOT ATOMIC DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK;RESIGNAL;END;"+p.begin, "END;"
		clear = "IF @d THEN " + clear + "END IF;"
		p.decide = "IF @p>0 THEN " + strings.ReplaceAll("SET @g="+rule, "{before}", placesBefore) + ";" +
			"ELSE SET @g=" + strings.ReplaceAll(rule, "{before}", "@w") + ";END IF;"
		p.give = "IF @g>0 THEN " + writePermit + " VALUES (" + giveValues + ")" + giveChange + "ELSEIF @g=0 AND @p>0 THEN " + leavePermit + "END IF;"
		p.join = "IF " + joinWhen + " THEN " + writePermit + " VALUES (" + joinValues + ")" + joinChange + "END IF;"
	}
	p.decide, p.give, p.join = w.Replace(p.decide), w.Replace(p.give), w.Replace(p.join)
	copy(p.load[:], strings.Split(w.Replace(loadSem+clear), "|"))
	p.settlements()
	return p
}

// The statements. Those that change rows find them by the primary key, and are told
// so: in a small table the server would rather look at all rows, and wait for those of
// other semaphores. Hence the DELETE of several tables, of which there is one, and
// place+0, which no index has. A semaphore's own row has the token ~, behind all
// others: one that walks through them comes to a row that is locked anyway, and not
// to the next semaphore's, for which it would have to wait.
const (
	loadSem = "SELECT name,ends<=@n,held,waits,ends,fence,turn,GREATEST(fence+1,@n,|) INTO @k,@d,@h,@w,@e,@f,@t,@b" +
		" FROM {table} FORCE INDEX (PRIMARY) WHERE token='~' AND name=|;"

	// clearSem counts anew, once anything may have ended, and takes away what has.
	clearSem = "SELECT IF(@d,COUNT(IF(place=0,1,NULL)),@h),IF(@d,COUNT(IF(place>0,1,NULL)),@w),IF(@d,IFNULL(MIN(ends),{never}),@e) INTO @h,@w,@e" +
		" FROM {table} FORCE INDEX (PRIMARY) WHERE name=@k AND token<IF(@d,x'7e',x'') AND ends>@n;" +
		"DELETE q FROM {table} q FORCE INDEX (PRIMARY) WHERE name=@k AND token<IF(@d,x'7e',x'') AND ends<=@n;"

	// decidePermit is the whole of the rule by which a permit is given: 1 when it is,
	// 0 when not, and -1 when there are no bases left.
	decidePermit = "IF(@b>{max},-1,IF(@p=0,1,IF(@h>=@l,0,@h+{before}<@l)))"
	placesBefore = "(SELECT COUNT(*) FROM {table} FORCE INDEX (queue) WHERE name=@k AND place>0 AND place<@p)"

	writePermit = "INSERT INTO {table} ({columns})"
	giveValues  = "@k,@o,0,@n+@y,@b,@l,0,0,0"
	giveChange  = " ON DUPLICATE KEY UPDATE place=0,ends=GREATEST(ends,VALUES(ends)),fence=VALUES(fence),most=VALUES(most);"
	leavePermit = "DELETE q FROM {table} q FORCE INDEX (PRIMARY) WHERE name=@k AND token=@o AND @g=0 AND @p>0;"

	joinWhen   = "@g>0 OR @g=0 AND (@p IS NULL OR @x-@n<=@q*2/3)" // a place that lasts long enough stays as it is
	joinValues = "@k,@o,IF(@g>0,0,@t+1),@n+IF(@g>0,@y,@q),IF(@g>0,@b,0),@l,0,0,0"
	joinChange = " ON DUPLICATE KEY UPDATE place=IF(VALUES(place)=0,0,place),ends=GREATEST(ends,VALUES(ends)),fence=VALUES(fence),most=VALUES(most);"
)

// settlement is what follows a release, a try or a join: set when there is more for
// the same semaphore, and save when there is not.
type settlement struct{ set, save string }

func (p *permitsText) settlements() {
	held := "@h+IF(@g>0 AND (@p IS NULL OR @p>0),1,0)"
	p.save = p.settle("@h", "@w", "@t", "@e", "@f", "@b").save
	p.released = p.settle("@h-@p", "@w-@x", "@t", "@e", "@f", "@b")
	p.given = p.settle(held, "@w-IF(@g>=0 AND @p>0,1,0)", "@t", "IF(@g>0 AND @p IS NULL,LEAST(@e,@n+@y),@e)", "IF(@g>0,@b,@f)", "@b+1")
	p.joined = p.settle(held, "@w+IF(@g=0 AND @p IS NULL,1,0)-IF(@g>0 AND @p>0,1,0)", "@t+IF(@g=0 AND @p IS NULL,1,0)",
		"IF(@g>=0 AND @p IS NULL,LEAST(@e,@n+IF(@g>0,@y,@q)),@e)", "IF(@g>0,@b,@f)", "@b+1")
}

func (p *permitsText) settle(held, waits, turn, ends, fence, base string) settlement {
	return settlement{
		"SET @h=" + held + ",@w=" + waits + ",@t=" + turn + ",@e=" + ends + ",@f=" + fence + ",@b=" + base + ";",
		"UPDATE " + p.table + " FORCE INDEX (PRIMARY) SET held=" + held + ",waits=" + waits + ",turn=" + turn + ",ends=" + ends + ",fence=" + fence +
			" WHERE name=@k AND token='~';",
	}
}

// token adds a token as bytes.
func (t *text) token(s string) { t.add("_binary'" + s + "'") }

// tokens adds (token,…).
func (t *text) tokens(items []*permit) {
	sep := byte('(')
	for _, it := range items {
		*t = append(*t, sep)
		t.token(it.token)
		sep = ','
	}
	*t = append(*t, ')')
}

// semaphores calls do for the items of each semaphore; they are sorted.
func semaphores(items []*permit, do func(same []*permit)) {
	for from, i := 0, 1; i <= len(items); i++ {
		if i == len(items) || items[i].name != items[from].name {
			do(items[from:i])
			from = i
		}
	}
}

// stages is those of one semaphore's items that have their turn from stage a to b.
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

// lockSems makes the rows of semaphores that have none, and locks them all, in the
// order of their names: whoever changes anything of a semaphore has its row locked. A
// new one is counted, since ends says that something of it may have ended: somebody
// may have deleted that row alone.
func (t *text) lockSems(sql *permitsText, items []*permit) {
	t.add("INSERT INTO " + sql.table + " (" + permitColumns + ") VALUES ")
	sep := "("
	semaphores(items, func(same []*permit) {
		t.add(sep)
		t.hex(same[0].name)
		t.add(",'~',-1,0,0,0,0,0,0)")
		sep = ",("
	})
	t.add(" ON DUPLICATE KEY UPDATE place=-1;")
}

// changeSem adds what the items of one semaphore change.
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
		t.add("SELECT COUNT(IF(place=0,1,NULL)),COUNT(IF(place>0,1,NULL)) INTO @p,@x FROM " + sql.table + " FORCE INDEX (PRIMARY) WHERE name=@k AND token IN ")
		t.tokens(released)
		t.add(";DELETE q FROM " + sql.table + " q FORCE INDEX (PRIMARY) WHERE name=@k AND token IN ")
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

// loadSem adds what reads the semaphore of items and clears it of what has ended.
func (t *text) loadSem(sql *permitsText, same []*permit) {
	var floor uint64
	for _, it := range same {
		floor = max(floor, it.floor)
	}
	t.add(sql.load[0])
	t.num(int64(floor + 1))
	t.add(sql.load[1])
	t.hex(same[0].name)
	t.add(sql.load[2])
}

func (t *text) rebasePermit(sql *permitsText, it *permit) {
	t.add("UPDATE " + sql.table + " FORCE INDEX (PRIMARY) SET ends=GREATEST(ends,@n+")
	t.num(micros(it.op.TTL))
	t.add("),fence=@b WHERE name=@k AND token=")
	t.token(it.token)
	t.add(" AND place+0=0 AND @b<=" + maxBase + ";SET @f=LEAST(@b," + maxBase + "),@b=@b+1;")
}

// renewPermits adds the renewals of one semaphore: one statement, if all have the
// same TTL.
func (t *text) renewPermits(sql *permitsText, items []*permit) {
	for len(items) > 0 {
		n := 1
		for n < len(items) && items[n].op.TTL == items[0].op.TTL {
			n++
		}
		t.add("UPDATE " + sql.table + " FORCE INDEX (PRIMARY) SET ends=GREATEST(ends,@n+")
		t.num(micros(items[0].op.TTL))
		t.add(") WHERE name=")
		t.hex(items[0].name)
		t.add(" AND token IN ")
		t.tokens(items[:n])
		t.add(" AND place+0=0;")
		items = items[n:]
	}
}

// acquirePermit adds a try or a join, and returns what has to follow it.
func (t *text) acquirePermit(sql *permitsText, it *permit) settlement {
	t.add("SELECT MIN(place),MIN(ends),")
	t.token(it.token)
	t.add(",")
	t.num(int64(it.op.Limit))
	t.add(",")
	t.num(micros(it.op.TTL))
	t.add(" INTO @p,@x,@o,@l,@y FROM " + sql.table + " FORCE INDEX (PRIMARY) WHERE name=@k AND token=")
	t.token(it.token)
	t.add(";" + sql.decide)
	if it.op.Kind == cache.OpJoin {
		t.add(sql.join)
		return sql.joined
	}
	t.add(sql.give)
	return sql.given
}

// permitRows adds a query for the rows of items.
func (t *text) permitRows(sql *permitsText, items []*permit) {
	t.add("SELECT name,token,place,fence FROM " + sql.table + " FORCE INDEX (PRIMARY) WHERE ")
	or := ""
	semaphores(items, func(same []*permit) {
		t.add(or + "name=")
		t.hex(same[0].name)
		t.add(" AND token IN ")
		t.tokens(same)
		or = " OR "
	})
}

// semNames adds (name,…) of the items' semaphores.
func (t *text) semNames(items []*permit) {
	sep := "("
	semaphores(items, func(same []*permit) {
		t.add(sep)
		t.hex(same[0].name)
		sep = ","
	})
	t.add(")")
}

// sems adds a query for the items' semaphores. wanted says whether another host
// waits, and peeks are those of which it is asked when the first permit ends.
func (t *text) sems(sql *permitsText, items, peeks []*permit, wanted string) {
	t.add("SELECT s.name,s.fence,s.waits>0," + wanted + ",")
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

// wantedSem is whether another host than instance's waits for a permit of s and has
// none free to take: whether the last of them has none.
func wantedSem(table, instance string) string {
	return "IF(s.waits>0,IFNULL((SELECT s.held>=q.most OR s.held+" +
		"(SELECT COUNT(*) FROM " + table + " b FORCE INDEX (queue) WHERE b.name=q.name AND b.place>0 AND b.place<q.place AND b.ends>@n)>=q.most" +
		" FROM " + table + " q FORCE INDEX (queue) WHERE q.name=s.name AND q.place>0 AND q.ends>@n" +
		" AND (q.token<_binary'" + instance + ".' OR q.token>_binary'" + instance + "/') ORDER BY q.place DESC LIMIT 1),0),0)"
}

// firstEnd is when the first permit of s ends, 0 when none is held.
func firstEnd(table string) string {
	return "IF(s.held>0,IFNULL((SELECT MIN(q.ends) FROM " + table + " q FORCE INDEX (PRIMARY) WHERE q.name=s.name AND q.place+0=0 AND q.ends>@n),0),0)"
}
