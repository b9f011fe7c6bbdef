package embedded

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// ErrState means that a state file is malformed.
var ErrState = errors.New("state file is damaged")

const stateFormat = 1

// state is the content of the state file.
type state struct {
	Format int    `json:"format"`
	Boot   string `json:"boot"`  // of the machine, for Until
	Until  int64  `json:"until"` // the session's deadline, ns of the boot clock; 0 without leases
	TTL    int64  `json:"ttl"`   // of the session, ns
	Limit  uint64 `json:"limit"` // all fence bases so far are below it
	// Kept are the leases that last without the daemon.
	Kept   []keptLease `json:"kept,omitempty"`
	Writer string      `json:"program"` // names this program to people who read the file
}

func readState(path string) (state, error) {
	var st state
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return st, nil
	}
	if err != nil {
		return st, fmt.Errorf("read state file: %w", err)
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	err = d.Decode(&st)
	if err == nil {
		if _, tail := d.Token(); tail != io.EOF {
			err = errors.New("it has text after its end")
		}
	}
	if err == nil {
		err = st.check()
	}
	if err != nil {
		return state{}, fmt.Errorf("%w: %s: %w (it keeps locks from being granted twice across a "+
			"restart: move it away only if no program can still believe that it holds a lock)",
			ErrState, path, err)
	}
	return st, nil
}

func (st *state) check() error {
	switch {
	case st.Format != stateFormat:
		return fmt.Errorf("format %d is not the known format %d", st.Format, stateFormat)
	case st.Until < 0 || st.TTL < 0 || st.Until > 0 && st.TTL == 0:
		return fmt.Errorf("until %d with ttl %d makes no sense", st.Until, st.TTL)
	case st.Limit > maxLimit:
		return fmt.Errorf("limit %d is out of range", st.Limit)
	}
	for i := range st.Kept {
		if err := st.Kept[i].check(); err != nil {
			return err
		}
	}
	return nil
}

// write replaces the file at path atomically: a reader finds either the old state or the new one.
// After it returns, the new state survives even a power failure.
func (st *state) write(path string) error {
	st.Format, st.Writer = stateFormat, "locksidecar"
	b, err := json.Marshal(st)
	if err != nil {
		return fmt.Errorf("write state file: %w", err)
	}
	tmp := path + ".new"
	if err := writeSynced(tmp, append(b, '\n')); err != nil {
		return fmt.Errorf("write state file: %w", err)
	}
	if err := os.Rename(tmp, path); err != nil {
		return fmt.Errorf("write state file: %w", err)
	}
	if err := syncDir(filepath.Dir(path)); err != nil {
		return fmt.Errorf("write state file: %w", err)
	}
	return nil
}

func writeSynced(path string, b []byte) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
