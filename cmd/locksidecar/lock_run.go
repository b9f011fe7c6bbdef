package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/locksidecar/locksidecar/cmd/locksidecar/internal/run"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/protocol/client"
)

// releaseTime bounds the wait for the confirmation of a release. The daemon continues the release
// after that.
const releaseTime = 10 * time.Second

// job is one run of a command under a lock.
type job struct {
	*lockOptions
	m      *Main
	socket string
	sigs   chan os.Signal
	away   chan time.Duration // set when the daemon drains; buffered for one
	client *client.Client
	holds  client.Holds
	unused bool // the command has not run, so the lock is not kept
}

func (m *Main) lock(ctx context.Context, o *lockOptions) error {
	socket, err := m.clientSocket(o.socket)
	if err != nil {
		return err
	}
	j := &job{lockOptions: o, m: m, socket: socket, sigs: make(chan os.Signal, 64),
		away: make(chan time.Duration, 1)}
	// SIGUSR2 is meant for the daemon, which has the same process name. This process ignores the
	// signal, and the command never gets it.
	dropped := make(chan os.Signal, 1)
	signal.Notify(dropped, syscall.SIGUSR2)
	defer signal.Stop(dropped)
	j.listen(syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM)
	defer signal.Stop(j.sigs)
	if err := j.acquire(ctx); err != nil {
		return err
	}
	defer j.client.Close()
	select {
	case sig := <-j.sigs: // it arrived together with the grant
		j.unused = true
		j.release(ctx)
		return exitWith(signalCode(sig))
	default:
	}
	p, err := j.start()
	if err != nil {
		j.unused = true
		j.release(ctx)
		code := run.StartCode(err)
		if code == run.CodeNotFound && strings.Contains(j.command[0], " ") {
			err = fmt.Errorf("%w; CMD runs without a shell, but -- sh -c '…' uses one", err)
		}
		return &exitError{code: code, err: err}
	}
	s := supervise(ctx, j, p)
	if !s.lost {
		j.release(ctx)
	}
	p.PassOn(s.end)
	if s.ending {
		return exitWith(exitLost)
	}
	return exitWith(s.end.Code)
}

// listen receives signals, except those that this process was started to ignore. For example, nohup
// also applies to the command.
func (j *job) listen(sigs ...os.Signal) {
	for _, s := range sigs {
		if !signal.Ignored(s) {
			signal.Notify(j.sigs, s)
		}
	}
}

func signalCode(s os.Signal) int { return 128 + int(s.(syscall.Signal)) }

// acquire connects and waits for the lock. A signal ends the wait. The acquire is withdrawn, and
// the end of the connection releases a grant that crosses the withdrawal.
func (j *job) acquire(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	got := make(chan error, 1)
	go func() { got <- j.ask(ctx) }()
	select {
	case err := <-got:
		return err
	case sig := <-j.sigs:
		cancel()
		<-got
		if j.client != nil {
			if j.keep > 0 { // a kept lock outlives the connection, so a late grant is given back first
				ctx, cancel := context.WithTimeout(context.Background(), time.Second)
				_, _ = j.client.Ping(ctx)
				cancel()
			}
			j.client.Close()
		}
		return exitWith(signalCode(sig))
	}
}

func (j *job) ask(ctx context.Context) (err error) {
	j.client, err = dial(ctx, j.socket, client.Options{
		Name: "locksidecar lock", Label: j.label(),
		OnGoingAway: func(millis uint64, _ string) {
			select {
			case j.away <- time.Duration(min(millis, 1<<32)) * time.Millisecond:
			default:
			}
		},
	})
	if err != nil {
		return err
	}
	args := j.acquireArgs()
	args.Traceparent, _ = j.m.Env("TRACEPARENT")
	if args.Wait >= 0 { // the daemon ends the wait in time, unless it hangs
		var cancel func()
		ctx, cancel = context.WithTimeout(ctx, args.Wait+answerTime)
		defer cancel()
	}
	began := time.Now()
	// A single key uses acquire, not acquire-many, because its refusal has more details.
	var h *client.Hold
	switch {
	case len(j.keys) == 1:
		args.Key = j.keys[0]
		h, err = j.client.Lock(ctx, args)
		j.holds = client.Holds{h}
	case j.any:
		if h, err = j.client.LockAny(ctx, j.keys, args); err == nil {
			j.holds, j.keys = client.Holds{h}, []string{h.Key()}
		}
	default:
		j.holds, err = j.client.LockMany(ctx, j.keys, args)
	}
	if err == nil {
		if j.holds[0].Grant().Flags&protocol.GrantBound != 0 {
			j.say("this store forgets a kept lock when the daemon ends: --keep then ends, too")
		}
		return nil
	}
	defer func() { // not earlier, because notAcquired asks for the holders
		j.client.Close()
		j.client = nil
	}()
	if errors.Is(err, client.ErrBusy) || errors.Is(err, client.ErrTimeout) ||
		errors.Is(err, client.ErrLimit) {
		return j.notAcquired(ctx, err, time.Since(began))
	}
	return clientExit(err, j.socket)
}

// notAcquired returns the error of a lock that was not acquired. It names the holder.
func (j *job) notAcquired(ctx context.Context, err error, waited time.Duration) error {
	e := &exitError{code: j.conflict}
	if j.quiet {
		return e
	}
	name, left := j.refusedKey(err)
	by := ""
	// The name of the refused key may also be a list of several keys.
	if known := slices.Contains(j.keys, name); known && !errors.Is(err, client.ErrLimit) {
		by = heldBy(ctx, j.client, name, j.permits > 0)
	}
	still := ""
	if by != "" {
		still = "; it is held" + by
	}
	switch {
	case errors.Is(err, client.ErrBusy) && j.permits > 0:
		e.err = fmt.Errorf("%s has no permit free%s", name, still)
	case errors.Is(err, client.ErrTimeout) && (j.wait < 0 || waited < j.wait/2):
		e.err = fmt.Errorf("%s: not acquired within the longest wait that the daemon allows%s",
			name, still)
	case errors.Is(err, client.ErrTimeout):
		e.err = fmt.Errorf("%s: not acquired within %v%s", name, j.wait, still)
	case errors.Is(err, client.ErrBusy) && j.any && len(j.keys) > 1:
		e.err = fmt.Errorf("each of %s is held", name)
	case errors.Is(err, client.ErrBusy) && left >= 0:
		e.err = fmt.Errorf("%s is held%s; its present lease ends in %v unless it is renewed",
			name, by, left)
	case errors.Is(err, client.ErrBusy):
		e.err = fmt.Errorf("%s is held%s", name, by)
	default:
		e.err = fmt.Errorf("%s: not acquired: %w", name, err)
	}
	return e
}

// refusedKey returns the key that was refused, or all keys if that is unknown. left is the time
// until its lease ends, or -1 if that is unknown.
func (j *job) refusedKey(err error) (name string, left time.Duration) {
	name = j.name()
	var refused *client.Error
	if !errors.As(err, &refused) || refused.Detail < 0 {
		return name, -1
	}
	if len(j.keys) == 1 || j.any {
		return name, time.Duration(refused.Detail) * time.Millisecond
	}
	if refused.Detail < int64(len(j.keys)) { // it is the index of the key
		name = j.keys[refused.Detail]
	}
	return name, -1
}

// start starts the command. From now on signals are forwarded to it.
func (j *job) start() (*run.Process, error) {
	j.listen(syscall.SIGUSR1, syscall.SIGTSTP, syscall.SIGCONT, syscall.SIGWINCH)
	path, _ := j.m.Env("PATH")
	return run.Start(run.Command{
		Args: j.command, Path: path, Env: j.environ(os.Environ()),
		Files: [3]*os.File{j.m.Stdin, j.m.Stdout, j.m.Stderr},
	})
}

// environ returns env with the variables for the command, and without the variables of an outer
// lock.
func (j *job) environ(env []string) []string {
	env = slices.DeleteFunc(env, func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return name == "LOCKSIDECAR_KEY" || name == "LOCKSIDECAR_FENCE" || name == "LOCKSIDECAR_SOCKET"
	})
	env = append(env, "LOCKSIDECAR_KEY="+strings.Join(j.keys, "\n"), "LOCKSIDECAR_SOCKET="+j.socket)
	var fences []string
	for _, h := range j.holds {
		fence := h.Fence()
		if fence == 0 { // a degraded hold has no fence
			return env
		}
		fences = append(fences, strconv.FormatUint(fence, 10))
	}
	return append(env, "LOCKSIDECAR_FENCE="+strings.Join(fences, "\n"))
}

// release releases the lock, and prints a message if the release is not confirmed. A signal ends
// the wait for the store.
func (j *job) release(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, releaseTime)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- j.releaseAll(ctx) }()
	for {
		select {
		case err := <-done:
			j.released(err)
			return
		case sig := <-j.sigs:
			if fatal(sig) {
				cancel()
			}
		}
	}
}

func (j *job) releaseAll(ctx context.Context) error {
	switch {
	case len(j.holds) > 1:
		return j.holds.Release(ctx)
	case j.unused:
		return j.holds[0].ReleaseNow(ctx)
	}
	return j.holds[0].Release(ctx)
}

func (j *job) released(err error) {
	switch {
	case err == nil:
	case errors.Is(err, client.ErrNotHeld), errors.Is(err, client.ErrClosed):
		j.say("the lock %s was lost before the command ended: %v", j.name(), err)
	default:
		j.say("the release of %s is not confirmed yet; the daemon continues to try: %v", j.name(), err)
	}
}

func fatal(s os.Signal) bool {
	switch s {
	case syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM:
		return true
	}
	return false
}

func (j *job) say(format string, a ...any) {
	if !j.quiet {
		fmt.Fprintf(j.m.Stderr, "locksidecar lock: "+format+"\n", a...)
	}
}
