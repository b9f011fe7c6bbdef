package conformance

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Fence is a fencing token in JSON. It is written as a string, since numbers are doubles in many
// languages. A number is also accepted.
type Fence uint64

// MarshalJSON writes the fence as a string.
func (f Fence) MarshalJSON() ([]byte, error) { return []byte(strconv.Quote(f.String())), nil }

// UnmarshalJSON reads a string or a number.
func (f *Fence) UnmarshalJSON(b []byte) error {
	v, err := strconv.ParseUint(strings.Trim(string(b), `"`), 10, 63)
	if err != nil {
		return fmt.Errorf("fence %s is not a whole number of 63 bits", b)
	}
	*f = Fence(v)
	return nil
}

func (f Fence) String() string { return strconv.FormatUint(uint64(f), 10) }

// Answer is the client's answer to a command.
type Answer struct {
	ID     *int     `json:"id"`
	OK     bool     `json:"ok"`
	Error  string   `json:"error"`
	Fence  *Fence   `json:"fence"`
	Key    string   `json:"key"` // acquire_any
	Fences []Fence  `json:"fences"`
	Codes  []string `json:"codes"`
	Held   *bool    `json:"held"`
	PID    int      `json:"pid"`   // fork
	Ended  *uint64  `json:"ended"` // force_unlock
}

// Event is a line that the client prints without being asked.
type Event struct {
	Event  string   `json:"event"`
	Key    string   `json:"key"`
	Owner  *uint64  `json:"owner"`
	Fence  *Fence   `json:"fence"`
	Reason string   `json:"reason"`
	Client string   `json:"client"` // ready
	Can    []string `json:"can"`    // ready
}

// Command is a command of the runner. Its fields depend on the field do.
type Command map[string]any

// keepLines is how many lines, and how many frames, of an exchange are kept for display.
const keepLines = 40

// noted is a line of an exchange.
type noted struct {
	no    int // its position among all lines and frames
	text  string
	times int // repetitions in a row
}

// program is a running client.
type program struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	wg    sync.WaitGroup
	ended chan struct{} // closed when the process has ended and all its output has been read

	mu      sync.Mutex
	changed chan struct{}   // guarded by mu: closed and replaced with each change
	lastID  int             // guarded by mu
	answers map[int]*Answer // guarded by mu: nil while awaited
	events  []Event         // guarded by mu
	lines   int             // guarded by mu: how many lines and frames were noted
	said    []noted         // guarded by mu: the last lines between runner and client
	frames  []noted         // guarded by mu: the last frames on the socket
	fault   error           // guarded by mu: the client has broken the rules for the lines
	exit    string          // guarded by mu: how it ended
	ready   *Event          // guarded by mu
}

// launch starts the client.
func launch(command, env []string) (*program, error) {
	p := &program{cmd: exec.Command(command[0], command[1:]...), ended: make(chan struct{}),
		changed: make(chan struct{}), answers: map[int]*Answer{}}
	p.cmd.Env = env
	// A group of its own, so that the children of a wrapper end with it.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var err error
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	stderr, err := p.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the client: %w", err)
	}
	p.wg.Go(func() { p.read(stdout) })
	p.wg.Go(func() {
		for s := scanner(stderr); s.Scan(); {
			p.note("stderr: " + s.Text())
		}
		_, _ = io.Copy(io.Discard, stderr)
	})
	go func() {
		p.wg.Wait()
		err := p.cmd.Wait()
		p.change(func() {
			p.exit = "exit status 0"
			if err != nil {
				p.exit = err.Error()
			}
		})
		close(p.ended)
	}()
	return p, nil
}

func scanner(r io.Reader) *bufio.Scanner {
	s := bufio.NewScanner(r)
	s.Buffer(make([]byte, 64<<10), 8<<20)
	return s
}

// read handles what the client prints.
func (p *program) read(r io.Reader) {
	s := scanner(r)
	for s.Scan() {
		if err := p.line(s.Bytes()); err != nil {
			p.change(func() {
				p.fault = fmt.Errorf("the client printed %.200q: %w",
					s.Text(), err)
			})
			break
		}
	}
	_, _ = io.Copy(io.Discard, r)
}

func (p *program) line(b []byte) error {
	p.note("< " + string(b))
	e, a := new(Event), new(Answer)
	if err := json.Unmarshal(b, e); err != nil {
		return err
	}
	if e.Event != "" {
		p.change(func() {
			if e.Event == "ready" && p.ready == nil {
				p.ready = e
			} else {
				p.events = append(p.events, *e)
			}
		})
		return nil
	}
	if err := json.Unmarshal(b, a); err != nil {
		return err
	}
	if a.ID == nil {
		return fmt.Errorf("neither an answer (id) nor an event")
	}
	if a.OK == (a.Error != "") {
		return fmt.Errorf(`an answer has either "ok":true or "error":NAME`)
	}
	var err error
	p.change(func() {
		old, asked := p.answers[*a.ID]
		switch {
		case !asked:
			err = fmt.Errorf("an answer to nothing that was asked")
		case old != nil:
			err = fmt.Errorf("a second answer to one command")
		default:
			p.answers[*a.ID] = a
		}
	})
	return err
}

func (p *program) change(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
	close(p.changed)
	p.changed = make(chan struct{})
}

// note keeps a line between the runner and the client.
func (p *program) note(line string) { p.keep(&p.said, line) }

// frame keeps a frame on the socket, in the form of text.
func (p *program) frame(line string) { p.keep(&p.frames, line) }

func (p *program) keep(in *[]noted, line string) {
	if len(line) > 300 {
		line = strings.ToValidUTF8(line[:300], "") + " …"
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lines++
	if n := len(*in); n > 0 && (*in)[n-1].text == line {
		(*in)[n-1].times++
		return
	}
	*in = append(*in, noted{p.lines, line, 1})
	if len(*in) >= 2*keepLines {
		*in = slices.Clone((*in)[len(*in)-keepLines:])
	}
}

// exchange returns the last lines and frames, in their order.
func (p *program) exchange() (lines []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	last := func(in []noted) []noted { return in[max(0, len(in)-keepLines):] }
	all := slices.Concat(last(p.said), last(p.frames))
	slices.SortStableFunc(all, func(a, b noted) int { return a.no - b.no })
	for _, n := range all {
		if n.times > 1 {
			n.text += fmt.Sprintf(" (%d times)", n.times)
		}
		lines = append(lines, n.text)
	}
	return lines
}

func (p *program) name() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ready == nil {
		return ""
	}
	return p.ready.Client
}

// send sends the client a command, and returns its id.
func (p *program) send(c Command) (id int, err error) {
	p.mu.Lock()
	p.lastID++
	id = p.lastID
	p.answers[id] = nil
	p.mu.Unlock()
	c["id"] = id
	b, err := json.Marshal(c)
	if err != nil {
		return 0, err
	}
	p.note("> " + string(b))
	_, err = p.stdin.Write(append(b, '\n'))
	return id, err
}

// signal sends a signal to the client's whole process group, which includes its children if the
// client is a wrapper. After the group has ended, and nothing has its standard output open any
// more, the group's number may belong to another group.
func (p *program) signal(s syscall.Signal) {
	select {
	case <-p.ended:
	default:
		_ = syscall.Kill(-p.cmd.Process.Pid, s)
	}
}

// partTime is the time in which a client may end by itself after its scenario.
const partTime = 2 * time.Second

// close ends the client: it closes the client's standard input, and kills the client if that does
// not help. It returns when the client has ended.
func (p *program) close() {
	_ = p.stdin.Close()
	select {
	case <-p.ended:
	case <-time.After(partTime):
	}
	p.signal(syscall.SIGKILL)
	<-p.ended
}
