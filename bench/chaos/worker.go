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

// worker is one client process, with the events that it has printed.
type worker struct {
	no, host int
	kind     string
	prefix   string // the prefix of its keys
	*process
	stdin  io.WriteCloser
	done   chan struct{} // closed when all its output has been read
	held   atomic.Int64  // grants so far
	turns  [turnKinds]atomic.Int64
	up     chan struct{} // closed when it has printed anything, or has ended
	events []Event       // read after done
	killed int64
	frozen []span
	err    error // read after done
}

// turnKind is a kind of turn of a worker. Each kind must have occurred before the first fault.
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

// count counts the successes. asked has the acquires without an answer.
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

// Programs are the commands that start workers, by language. A language without a command is left
// out.
type Programs map[string][]string

// startWorker starts a worker in the language kind; ready waits for it.
func startWorker(kind string, program []string, orders Orders, host int,
	log string) (*worker, error) {
	w := &worker{no: orders.Worker, host: host, kind: kind, prefix: orders.Prefix,
		done: make(chan struct{}), up: make(chan struct{})}
	words := append(append([]string{}, program[1:]...), orders.words()...)
	cmd := exec.Command(program[0], words...)
	cmd.Env = append(os.Environ(), roleEnv+"="+roleWorker, "GOMAXPROCS=2")
	// a pipe of this process, so that the output of a killed worker is read to its end
	out, in, err := os.Pipe()
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

// ready waits until the worker runs.
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

// freeze stops the worker, and thaw continues it. They record the longest time for which it may
// have been stopped.
func (w *worker) freeze() {
	w.frozen = append(w.frozen, span{now(), forever})
	w.process.freeze()
}

func (w *worker) thaw() {
	// Until just before it continues, it has certainly read nothing.
	w.frozen[len(w.frozen)-1].to = now()
	w.process.thaw()
}

// kill ends the worker. Until just before that, it believed in its holds.
func (w *worker) kill() {
	w.killed = now()
	w.process.end(syscall.SIGKILL)
}

// bid tells the worker to begin nothing more.
func (w *worker) bid() { _ = w.stdin.Close() }

// finish ends the worker if it has not ended. It returns false if it had to.
func (w *worker) finish() bool {
	ok := w.process.ended()
	if !ok {
		w.killed = now()
		w.process.end(syscall.SIGQUIT) // the stacks of its goroutines go to its log
	}
	<-w.done
	return ok
}
