package protocol

import (
	"errors"
	"fmt"
	"unicode/utf8"
)

// Request is one decoded request of any kind. Only the fields of its op are set; the others are
// zero. Byte slices point into the payload, so they are valid until the next read into that buffer.
type Request struct {
	Op    Op
	ID    uint64 // the client's; positive
	Key   []byte
	Owner uint64 // the client's number for a thread or a task; 0 has no special meaning
	Mode  Mode
	Wait  int64  // milliseconds; 0 tries, -1 waits indefinitely
	TTL   uint64 // milliseconds; 0 means the namespace's TTL
	Flags uint64
	Fence uint64

	Permits uint64 // acquire with mode Permit: the number of permits of the semaphore
	// Trace is the caller's traceparent in an acquire of any kind. It is empty if there is none, or no
	// valid one.
	Trace []byte
	// Keep is, for acquire, for how many milliseconds after the grant the key stays closed although
	// the hold has been released or its session has ended.
	Keep uint64

	Target uint64 // cancel: the id of the acquire to withdraw

	MinVersion, MaxVersion uint64 // hello
	Name, Label            []byte

	Keys   [][]byte // acquire-many, acquire-any, release-many
	Fences []uint64 // release-many; as long as Keys

	Prefix, After []byte // list
	Limit         uint64
}

// FatalError is a fault that ends the connection, because the bytes are not a frame of this
// protocol.
type FatalError struct {
	Code Code
	Msg  string
}

func (e *FatalError) Error() string { return e.Msg }

// FieldError is a fault of one well-formed request. The daemon answers it under the request's id,
// and the connection continues.
type FieldError struct {
	Code Code
	Msg  string
}

func (e *FieldError) Error() string { return e.Msg }

func invalid(format string, a ...any) error {
	return &FieldError{Invalid, fmt.Sprintf(format, a...)}
}

// DecodeRequest reads one payload into q, reusing q's slices. The error is a
// *FieldError, with q.ID set, or a *FatalError.
func DecodeRequest(payload []byte, q *Request) error {
	*q = Request{Keys: q.Keys[:0], Fences: q.Fences[:0]}
	r := reader{payload}
	n, err := r.array()
	if err != nil {
		return &FatalError{BadFrame, "payload is not an array: " + err.Error()}
	}
	if n < 2 {
		return &FatalError{BadFrame, "array has no op and id"}
	}
	op, err := r.uint()
	if err != nil || op > 255 {
		return &FatalError{BadFrame, "op is not a small unsigned integer"}
	}
	if q.ID, err = r.uint(); err != nil || q.ID == 0 {
		return &FatalError{BadFrame, "id is not a positive integer"}
	}
	q.Op = Op(op)
	d := fields{reader: r, left: n - 2}
	err = d.request(q)
	if err == nil {
		err = d.rest()
	}
	if err == nil {
		return nil
	}
	// A wrong field in a well-formed frame is answered. A frame that cannot be read to its end does
	// not belong to this protocol.
	if e := wellFormed(payload); e != nil {
		return &FatalError{BadFrame, "malformed msgpack: " + e.Error()}
	}
	if _, ok := errors.AsType[*FieldError](err); ok {
		return err
	}
	return &FatalError{BadFrame, err.Error()}
}

func wellFormed(payload []byte) error {
	r := reader{payload}
	if err := r.skip(0); err != nil {
		return err
	}
	if len(r.b) > 0 {
		return errTrailing
	}
	return nil
}

// fields reads the entries of an array one by one. A missing entry has its default.
type fields struct {
	reader
	left int
}

func (d *fields) next() bool {
	if d.left == 0 {
		return false
	}
	d.left--
	return true
}

// rest skips the fields that a later version has appended.
func (d *fields) rest() error {
	for d.next() {
		if err := d.skip(1); err != nil {
			return err
		}
	}
	if len(d.b) > 0 {
		return errTrailing
	}
	return nil
}

func (d *fields) uintField(name string, required bool, v *uint64) error {
	if !d.next() {
		if required {
			return invalid("%s is missing", name)
		}
		return nil
	}
	u, err := d.uint()
	if err != nil {
		return invalid("%s: %v", name, err)
	}
	*v = u
	return nil
}

func (d *fields) strField(name string, required bool, limit int, v *[]byte) error {
	if !d.next() {
		if required {
			return invalid("%s is missing", name)
		}
		return nil
	}
	s, err := d.str()
	if err != nil {
		return invalid("%s: %v", name, err)
	}
	if len(s) > limit {
		return invalid("%s has %d bytes, the limit is %d", name, len(s), limit)
	}
	if !utf8.Valid(s) {
		return invalid("%s is not UTF-8", name)
	}
	*v = s
	return nil
}

func (d *fields) keyField(v *[]byte) error {
	if !d.next() {
		return invalid("key is missing")
	}
	s, err := d.str()
	if err != nil {
		return invalid("key: %v", err)
	}
	*v = s
	return CheckKey(s)
}

// CheckKey checks that k is a key: 1 to 512 bytes of UTF-8 without control characters. The error is
// a *FieldError.
func CheckKey[K ~string | ~[]byte](k K) error {
	if len(k) == 0 {
		return invalid("key is empty")
	}
	if len(k) > MaxKey {
		return invalid("key has %d bytes, the limit is %d", len(k), MaxKey)
	}
	ascii := true
	for i := range len(k) {
		c := k[i]
		if c < 0x20 || c == 0x7f {
			return invalid("key has a control character at byte %d", i)
		}
		ascii = ascii && c < 0x80
	}
	if ascii {
		return nil
	}
	if !utf8.Valid([]byte(k)) { // no copy if k is bytes already
		return invalid("key is not UTF-8")
	}
	for i := range len(k) - 1 {
		if k[i] == 0xc2 && k[i+1] < 0xa0 { // U+0080 … U+009F
			return invalid("key has a control character at byte %d", i)
		}
	}
	return nil
}

func (d *fields) request(q *Request) error {
	switch q.Op {
	case OpHello:
		return d.hello(q)
	case OpAcquire:
		return d.acquire(q)
	case OpRelease:
		if err := d.hold(q); err != nil {
			return err
		}
		if err := d.flagsField(q, releaseFlags); err != nil {
			return err
		}
		if q.Flags&FlagQuiet != 0 && q.Flags&FlagDetached != 0 {
			return invalid("the release of a detached hold is not quiet")
		}
		return nil
	case OpRenew:
		if err := d.hold(q); err != nil {
			return err
		}
		return d.ttlField(q)
	case OpDowngrade:
		return d.hold(q)
	case OpCancel:
		return d.cancel(q)
	case OpInspect:
		return d.inspect(q)
	case OpAcquireMany:
		return d.acquireKeys(q, MaxMany)
	case OpAcquireAny:
		return d.acquireKeys(q, MaxAny)
	case OpReleaseMany:
		return d.releaseMany(q)
	case OpPing:
		return nil
	case OpList:
		return d.list(q, maxPlace)
	case OpStored:
		return d.list(q, maxStoredPlace)
	case OpForceUnlock:
		return d.forceUnlock(q)
	}
	return &FieldError{Unsupported, "unknown operation " + itoa(uint64(q.Op))}
}

func (d *fields) acquire(q *Request) error {
	if err := d.keyField(&q.Key); err != nil {
		return err
	}
	if err := d.terms(q); err != nil {
		return err
	}
	if err := d.permits(q); err != nil {
		return err
	}
	if err := d.trace(q); err != nil {
		return err
	}
	return d.keepField(q)
}

func (d *fields) cancel(q *Request) error {
	if err := d.uintField("target", true, &q.Target); err != nil {
		return err
	}
	return d.keyField(&q.Key)
}

func (d *fields) inspect(q *Request) error {
	if err := d.keyField(&q.Key); err != nil {
		return err
	}
	if err := d.modeField(q); err != nil {
		return err
	}
	return d.flagsField(q, inspectFlags)
}

func (d *fields) forceUnlock(q *Request) error {
	if err := d.keyField(&q.Key); err != nil {
		return err
	}
	if err := d.modeField(q); err != nil {
		return err
	}
	return d.uintField("fence", false, &q.Fence)
}

// acquireKeys reads an acquire of up to limit keys.
func (d *fields) acquireKeys(q *Request, limit int) error {
	if err := d.keyList(q, false, limit); err != nil {
		return err
	}
	if err := d.terms(q); err != nil {
		return err
	}
	if q.Mode == Permit {
		return invalid("permits are acquired one by one")
	}
	return d.trace(q)
}

func (d *fields) releaseMany(q *Request) error {
	if err := d.keyList(q, true, MaxMany); err != nil {
		return err
	}
	if err := d.uintField("owner", true, &q.Owner); err != nil {
		return err
	}
	return d.flagsField(q, releaseManyFlags)
}

func (d *fields) hello(q *Request) error {
	if err := d.uintField("min version", true, &q.MinVersion); err != nil {
		return err
	}
	if err := d.uintField("max version", true, &q.MaxVersion); err != nil {
		return err
	}
	if err := d.strField("name", false, MaxName, &q.Name); err != nil {
		return err
	}
	return d.strField("label", false, MaxName, &q.Label)
}

// terms reads the fields of an acquire after its keys.
func (d *fields) terms(q *Request) error {
	if err := d.uintField("owner", true, &q.Owner); err != nil {
		return err
	}
	if err := d.modeField(q); err != nil {
		return err
	}
	if d.next() {
		w, err := d.int()
		if err != nil {
			return invalid("wait: %v", err)
		}
		if w < WaitAlways || w > MaxWait {
			return invalid("wait of %d ms is out of range (-1 waits indefinitely)", w)
		}
		q.Wait = w
	}
	if err := d.ttlField(q); err != nil {
		return err
	}
	return d.flagsField(q, acquireFlags)
}

func (d *fields) modeField(q *Request) error {
	var mode uint64
	if err := d.uintField("mode", false, &mode); err != nil {
		return err
	}
	if mode > uint64(Permit) {
		return invalid("mode %d is none of exclusive (0), shared (1) and permit (2)", mode)
	}
	q.Mode = Mode(mode)
	return nil
}

// permits reads how many permits the semaphore has.
func (d *fields) permits(q *Request) error {
	if err := d.uintField("permits", false, &q.Permits); err != nil {
		return err
	}
	if q.Mode == Permit && (q.Permits == 0 || q.Permits > MaxPermits) {
		return invalid("%d permits; a semaphore has 1 to %d", q.Permits, MaxPermits)
	}
	if q.Mode != Permit && q.Permits != 0 {
		return invalid("%d permits of a lock", q.Permits)
	}
	return nil
}

// trace reads a trace context. It ignores an invalid one: no lock is refused because of it.
func (d *fields) trace(q *Request) error {
	if !d.next() {
		return nil
	}
	r := d.reader
	if err := d.skip(1); err != nil {
		return err
	}
	if s, err := r.str(); err == nil {
		if _, ok := ParseTraceparent(s); ok {
			q.Trace = s
		}
	}
	return nil
}

func (d *fields) keepField(q *Request) error {
	if err := d.uintField("keep", false, &q.Keep); err != nil {
		return err
	}
	if q.Keep > MaxTTL {
		return invalid("keep of %d ms is longer than a day, %d ms", q.Keep, MaxTTL)
	}
	return nil
}

// hold reads the fields that identify one hold: key, owner and fence.
func (d *fields) hold(q *Request) error {
	if err := d.keyField(&q.Key); err != nil {
		return err
	}
	if err := d.uintField("owner", true, &q.Owner); err != nil {
		return err
	}
	return d.uintField("fence", true, &q.Fence)
}

func (d *fields) ttlField(q *Request) error {
	if err := d.uintField("ttl", false, &q.TTL); err != nil {
		return err
	}
	if q.TTL > MaxTTL {
		return invalid("ttl of %d ms is longer than a day, %d ms", q.TTL, MaxTTL)
	}
	return nil
}

func (d *fields) flagsField(q *Request, known uint64) error {
	if err := d.uintField("flags", false, &q.Flags); err != nil {
		return err
	}
	if q.Flags&^known != 0 {
		return invalid("unknown flags %#x", q.Flags&^known)
	}
	return nil
}

// keyList reads a list of up to limit keys, or of [key, fence] pairs.
func (d *fields) keyList(q *Request, pairs bool, limit int) error {
	if !d.next() {
		return invalid("keys are missing")
	}
	n, err := d.array()
	if err != nil {
		return invalid("keys: %v", err)
	}
	if n == 0 || n > limit {
		return invalid("%d keys; 1 to %d may be given", n, limit)
	}
	for range n {
		more := 0
		if pairs {
			if more, err = d.array(); err != nil || more < 2 {
				return invalid("an entry is not [key, fence]")
			}
			more -= 2
		}
		k, err := d.str()
		if err != nil {
			return invalid("key: %v", err)
		}
		if err := CheckKey(k); err != nil {
			return err
		}
		q.Keys = append(q.Keys, k)
		if pairs {
			f, err := d.uint()
			if err != nil {
				return invalid("fence: %v", err)
			}
			q.Fences = append(q.Fences, f)
		}
		for range more { // appended by a later version
			if err := d.skip(3); err != nil {
				return err
			}
		}
	}
	return nil
}

// The largest sizes of the positions after which a list or a stored continues.
const (
	maxPlace       = MaxKey + 16
	maxStoredPlace = 4096
)

func (d *fields) list(q *Request, place int) error {
	if err := d.strField("prefix", false, MaxKey, &q.Prefix); err != nil {
		return err
	}
	if err := d.strField("after", false, place, &q.After); err != nil {
		return err
	}
	q.Limit = MaxList
	if err := d.uintField("limit", false, &q.Limit); err != nil {
		return err
	}
	if q.Limit == 0 || q.Limit > MaxList {
		return invalid("limit of %d rows; 1 to %d may be asked for", q.Limit, MaxList)
	}
	return nil
}
