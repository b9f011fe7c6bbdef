package redis

import (
	"context"
	"strings"

	goredis "github.com/redis/go-redis/v9"
)

// A server that does not know a command repeats it in its error, with its arguments: of AUTH that is a
// password. Others repeat what they like. No error that is shown has the password of its connection.

// quoted is how such an error goes on behind the command's name.
const quoted = ", with args beginning with"

// censored is an error without what is not to be seen of it. It is the same error to who looks for one.
type censored struct {
	error
	text string
}

func (e censored) Error() string { return e.text }

// Unwrap is the error itself, which nobody may show.
func (e censored) Unwrap() error { return e.error }

// discreet returns err as it may be shown.
func (d *dialer) discreet(err error) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	shown, _, _ := strings.Cut(text, quoted)
	if s := d.secret.Load(); s != nil && *s != "" {
		shown = strings.ReplaceAll(shown, *s, "xxxxx")
	}
	if shown == text {
		return err
	}
	return censored{err, shown}
}

// hook makes all errors of a client discreet.
type hook struct{ d *dialer }

func (h hook) DialHook(next goredis.DialHook) goredis.DialHook { return next }

func (h hook) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook {
	return func(ctx context.Context, cmd goredis.Cmder) error {
		err := next(ctx, cmd)
		if err != nil {
			h.hide(cmd)
		}
		return h.d.discreet(err)
	}
}

func (h hook) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []goredis.Cmder) error {
		err := next(ctx, cmds)
		if err == nil {
			return nil
		}
		for _, cmd := range cmds {
			h.hide(cmd)
		}
		return h.d.discreet(err)
	}
}

func (h hook) hide(cmd goredis.Cmder) {
	if err, ok := h.d.discreet(cmd.Err()).(censored); ok {
		cmd.SetErr(err)
	}
}
