package upstream

import (
	"context"
	"os"

	"github.com/locksidecar/locksidecar/cache"
)

// Capabilities are the optional parts of the contract. A field is nil if the store does not have
// that part. The fields are usually the store itself.
type Capabilities struct {
	Inline    Inline    // some ops without I/O
	Lister    Lister    // a list of the locks in the store
	Registrar Registrar // entries that name the daemons, and the holders of a key
	Asker     Asker     // questions to other daemons about their leases
	Answerer  Answerer  // answers to such questions
	Sweeper   Sweeper   // removal of state that requests without an answer have left behind
	Mover     Mover     // leases that another process can continue after a takeover
	Noter     Noter     // a small text that all daemons share

	// Connections returns the number of open connections to the store's servers.
	Connections func() int
	// RunID returns the id of the server's present run. It is empty if the id is unknown. It
	// changes when the server restarts.
	RunID func() string
	// Pair has the two stores if the store is a pair.
	Pair *[2]Store
}

// Inline is implemented by a store that can carry out some ops without I/O.
type Inline interface {
	// ApplyInline carries out op if that takes no I/O. The caller holds locks. If it returns false,
	// nothing has happened and the caller passes op to Apply.
	ApplyInline(op *Op, res *Result) bool
}

// Lister is implemented by a store that can list its locks, including locks of other hosts and
// locks without a living holder.
type Lister interface {
	// List returns at most limit locks whose keys begin with prefix, and the cursor of the next
	// page. cursor is empty for the first page, and next is empty after the last. Locks that are
	// taken or released meanwhile may be missing or appear twice. List must not delay other work at
	// the server.
	List(ctx context.Context, prefix, cursor string, limit int) (locks []Lock, next string, err error)
}

// Lock is a lock in a store.
type Lock struct {
	Key     string
	Name    string // its name in the store, for operators who inspect the store
	Mode    cache.Mode
	Holder  string // the holder in the store's own terms: a token, a lease, an instance id
	Mine    bool   // held through this Store
	Foreign bool   // held by a program other than locksidecar
	Left    int64  // nanoseconds until it expires, or -1 if that is unknown
	Waiters int    // the length of the store's queue, or -1 if that is unknown
	Base    uint64 // its fence base, or 0 if that is unknown
	Daemon  string // the id under which the holder's daemon registers, or empty: see Registrar
	Token   uint64 // the number of the holder's token, or 0; only for questions to its daemon
	Held    int64  // nanoseconds since the lease began, or 0 if that is unknown
	Asker   Asker  // can ask the holder's daemon for Held, or nil: see Ask
	Note    string // a remark for people, such as the nodes that disagree
}

// Sweeper is implemented by a store in which a request without an answer can leave state behind.
type Sweeper interface {
	// Sweep removes the state that belongs to this Store and has an unknown token. known may be
	// called from any goroutine and does not block for long. A token that is unknown once stays
	// unknown.
	Sweep(ctx context.Context, known func(key string, token uint64) bool) (removed int, err error)
}

// Noter is implemented by a store that keeps the note: one small text that all daemons share and
// that outlives each of them.
type Noter interface {
	// Note returns the text and its version, which is 0 if there is no text. The text includes
	// every change that any daemon had finished before the call.
	Note(ctx context.Context) (text []byte, version int64, err error)

	// SetNote replaces the text if its version is still the given one. Otherwise ok is false. After
	// an error the text may have been replaced.
	SetNote(ctx context.Context, text []byte, version int64) (ok bool, err error)
}

// Mover is implemented by a store whose leases another process can continue after a takeover.
type Mover interface {
	// Identity returns what the successor must know before it opens the store. It never changes.
	Identity() string

	// Leave returns the rest of the state that the successor needs. No Apply and no Sweep is in
	// progress, and none begins before Stay. Until then the Store changes nothing permanently.
	// Leave does not wait for the server.
	Leave() ([]byte, error)

	// Stay is called if the successor fails. This Store continues.
	Stay()

	// Arrive makes a Store that was opened with the Identity continue from the state that Leave
	// returned. It changes nothing at the store. begin does, and is called before any Apply, once
	// the earlier process is sure not to continue.
	Arrive(state []byte) (begin func(), err error)
}

// Successor has what a process needs to open a store that it takes over.
type Successor struct {
	Identity string   // see Mover
	Lock     *os.File // the file that the earlier process has locked for the store, or nil
}

// Connections returns the number of open connections to the servers of these stores together.
func Connections(stores ...Store) (n int) {
	for _, s := range stores {
		if count := s.Capabilities().Connections; count != nil {
			n += count()
		}
	}
	return n
}
