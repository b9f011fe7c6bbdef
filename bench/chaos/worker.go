package chaos

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// worker is one client process, and what it has told.
type worker struct {
	no, host int
	kind     string
	prefix   string // of its keys
	*process
	stdin  io.WriteCloser
	done   chan struct{} // closed when all that it told has been read
	held   atomic.Int64  // grants so far
	turns  [turnKinds]atomic.Int64
	up     chan struct{} // closed when it has told anything, or ended
	events []Event       // read after done
	killed int64
	frozen []span
	err    error // read after done
}

// turnKind is a kind of what workers do, as far as each has to have happened.
type turnKind int

const (
	permitTurn turnKind = iota
	manyTurn
	lowerTurn
	turnKinds
)

func (k turnKind) String() string {
	return [...]string{"permit", "acquire of several", "downgrade"}[k]
}

// count counts what went well; asked are the acquires without an answer.
func (w *worker) count(e Event, asked map[int64]Event) {
	switch {
	case e.E == evAsk:
		asked[e.N] = e
	case e.E == evLow && e.R == "ok":
		w.turns[lowerTurn].Add(1)
	case e.E == evGot:
		a := asked[e.N]
		delete(asked, e.N)
		if e.R != "ok" {
			return
		}
		w.held.Add(1)
		if a.P > 0 {
			w.turns[permitTurn].Add(1)
		}
		if a.G > 0 {
			w.turns[manyTurn].Add(1)
		}
	}
}

// Programs are how workers are started, by language. One without a program is left out.
type Programs map[string][]string

// startWorker starts one in the language kind; see ready.
func startWorker(kind string, program []string, orders Orders, host int,
	log string) (*worker, error) {
	w := &worker{no: orders.Worker, host: host, kind: kind, prefix: orders.Prefix,
		done: make(chan struct{}), up: make(chan struct{})}
	words := append(append([]string{}, program[1:]...), orders.words()...)
	cmd := exec.Command(program[0], words...)
	cmd.Env = append(os.Environ(), roleEnv+"="+roleWorker, "GOMAXPROCS=2")
	out, in, err := os.Pipe() // ours, so that what a killed one has written is read to the end
	if err != nil {
		return nil, err
	}
	defer in.Close()
	cmd.Stdout = in
	if w.stdin, err = cmd.StdinPipe(); err == nil {
		w.process, err = launch(cmd, log)
	}
	if err != nil {
		out.Close()
		return nil, err
	}
	go w.read(out)
	return w, nil
}

// ready waits until it runs.
func (w *worker) ready() {
	select {
	case <-w.up:
	case <-time.After(patience):
		panic(broken{fmt.Errorf("worker %d (%s) does not start: %s", w.no, w.kind, tail(w.process.log))})
	}
}

func (w *worker) read(out *os.File) {
	defer close(w.done)
	defer out.Close()
	var once sync.Once
	defer once.Do(func() { close(w.up) })
	asked := map[int64]Event{}
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		var e Event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			w.err = fmt.Errorf("worker %d (%s) says %q: %w", w.no, w.kind, lines.Text(), err)
			continue
		}
		e.W = w.no
		if skew := now() - e.T; e.E == evUp && (skew < -int64(time.Millisecond) ||
			skew > int64(patience)) {
			w.err = fmt.Errorf("worker %d (%s) has another clock: %d ns apart", w.no, w.kind, skew)
		}
		w.count(e, asked)
		w.events = append(w.events, e)
		once.Do(func() { close(w.up) })
	}
}

// freeze and thaw note for how long it stood still, at the most.
func (w *worker) freeze() {
	w.frozen = append(w.frozen, span{now(), forever})
	w.process.freeze()
}

func (w *worker) thaw() {
	// Until just before it goes on it has certainly read nothing.
	w.frozen[len(w.frozen)-1].to = now()
	w.process.thaw()
}

// kill ends it; until just before that it believed what it did.
func (w *worker) kill() {
	w.killed = now()
	w.process.end(syscall.SIGKILL)
}

// bid has it begin nothing more.
func (w *worker) bid() { _ = w.stdin.Close() }

// finish makes it end if it has not; false if it had to.
func (w *worker) finish() bool {
	ok := w.process.ended()
	if !ok {
		w.killed = now()
		w.process.end(syscall.SIGQUIT) // goroutines' stacks go to its log
	}
	<-w.done
	return ok
}
