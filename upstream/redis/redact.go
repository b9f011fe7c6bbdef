package redis

import (
	"context"
	"strings"

	goredis "github.com/redis/go-redis/v9"
)

// Redis repeats an unknown command and its arguments in its error reply. For AUTH, the arguments
// include a password. Other servers may repeat anything. No error that is shown contains the
// password of its connection.

// argsQuote is the part of such an error that follows the name of the command.
const argsQuote = ", with args beginning with"

// redacted is an error without its secrets. errors.Is and errors.As find the original in it.
type redacted struct {
	error
	text string
}

func (e redacted) Error() string { return e.text }

// Unwrap returns the original error, which must not be shown.
func (e redacted) Unwrap() error { return e.error }

// redact returns err in a form that may be shown.
func (d *dialer) redact(err error) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	shown, _, _ := strings.Cut(text, argsQuote)
	if s := d.secret.Load(); s != nil && *s != "" {
		shown = strings.ReplaceAll(shown, *s, "xxxxx")
	}
	if shown == text {
		return err
	}
	return redacted{err, shown}
}

// hook redacts all errors of a client.
type hook struct{ d *dialer }

func (h hook) DialHook(next goredis.DialHook) goredis.DialHook { return next }

func (h hook) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook {
	return func(ctx context.Context, cmd goredis.Cmder) error {
		err := next(ctx, cmd)
		if err != nil {
			h.hide(cmd)
		}
		return h.d.redact(err)
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
		return h.d.redact(err)
	}
}

func (h hook) hide(cmd goredis.Cmder) {
	if err, ok := h.d.redact(cmd.Err()).(redacted); ok {
		cmd.SetErr(err)
	}
}
