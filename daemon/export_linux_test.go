package daemon

import "io"

// The places at which a process that takes over may be killed.
const (
	AfterClaim = iota
	AfterPrepared
	AfterEstate
	InReady // half of it is said
	Silent  // it says nothing any more, and lives
	Steps
)

// EndAt takes over as Inherit does, up to a step, and ends there as a process does that is killed.
func (e *Estate) EndAt(step int, cfg Config) error {
	defer e.Close()
	if step == AfterClaim {
		return nil
	}
	has := prepared{make(map[string]string)}
	for _, s := range cfg.Stores {
		has.Stores[s.Name] = s.Key
	}
	if err := putMessage(e.c, has, nil); err != nil || step == AfterPrepared {
		return err
	}
	in, _, err := e.receive()
	if err != nil {
		return err
	}
	defer in.close()
	switch step {
	case InReady:
		_, err = e.c.Write([]byte{0, 0})
	case Silent:
		_, err = e.c.Read(make([]byte, 1))
		if err == io.EOF {
			err = nil
		}
	}
	return err
}
