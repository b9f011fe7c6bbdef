package takeover

import (
	"fmt"
	"net"
	"time"
)

// Giver is the process that serves.
type Giver interface {
	// Offer returns the offer, and the descriptors that belong to it. An error refuses the
	// takeover.
	Offer() (o Offer, locks []int, err error)
	// FreezeTime returns how long the process may be frozen.
	FreezeTime() time.Duration
	// Freeze stops the process, at the latest at end. The caller calls Thaw even after an error,
	// unless the takeover is committed.
	Freeze(end time.Time) error
	Thaw()
	// Leave returns the snapshot and its description, and adds the descriptors that go with it to
	// files. The caller adds the memory file of the snapshot last.
	Leave(files *Files) (snapshot []byte, contents Contents, err error)
	// Commit calls write, which commits the takeover. The process may refuse that with an error. If
	// write returns no error, the process does nothing any more.
	Commit(successor Request, write func() error) error
}

// Give carries out the takeover by the process at the other end of c, which has sent other. After
// an error the process that serves continues.
func Give(c *net.UnixConn, other Request, from Giver) error {
	if err := prepare(c, other, from); err != nil {
		return err
	}
	end := time.Now().Add(from.FreezeTime())
	_ = c.SetDeadline(end)
	err := from.Freeze(end)
	if err == nil {
		err = passOn(c, from)
	}
	if err == nil {
		_, err = Receive(c, &Ready{})
	}
	if err == nil {
		err = from.Commit(other, func() error {
			_ = c.SetDeadline(time.Time{})
			_, err := c.Write([]byte{committed})
			return err
		})
	}
	if err != nil {
		_ = c.Close() // first: from now on the takeover of the other process is sure to fail
		from.Thaw()
	}
	return err
}

// prepare sends the offer, and waits until the other process is prepared.
func prepare(c *net.UnixConn, other Request, from Giver) error {
	refuse := func(err error) error {
		_ = Send(c, Offer{Refused: err.Error()}, nil)
		return err
	}
	if other.Form != Form {
		return refuse(fmt.Errorf("%w: it knows form %d of takeovers, this process form %d",
			ErrMessage, other.Form, Form))
	}
	o, locks, err := from.Offer()
	if err != nil {
		return refuse(err)
	}
	if err := Send(c, o, locks); err != nil {
		return err
	}
	var has Prepared
	if _, err := Receive(c, &has); err != nil {
		return err
	}
	for _, s := range o.Missing(has.Stores) {
		err := fmt.Errorf("store %q is not the same in its configuration: reload this daemon first",
			s.Name)
		_ = Send(c, Contents{Refused: err.Error()}, nil)
		return err
	}
	return nil
}

// passOn sends the takeover state: the snapshot and every descriptor.
func passOn(c *net.UnixConn, from Giver) error {
	var files Files
	defer files.Close()
	snapshot, contents, err := from.Leave(&files)
	if err == nil {
		err = files.AddMemory(snapshot)
	}
	if err != nil {
		_ = Send(c, Contents{Refused: err.Error()}, nil)
		return err
	}
	if err := Send(c, contents, nil); err != nil {
		return err
	}
	return files.SendAll(c)
}

// Park adds a parked state to files: the locks of the offer, what the frozen process leaves, and
// the memory file.
func Park(files *Files, o Offer, locks []int, from Giver) error {
	for _, fd := range locks {
		files.AddFD(fd)
	}
	snapshot, contents, err := from.Leave(files)
	if err != nil {
		return err
	}
	memory, err := encodeParked(o, contents, snapshot)
	if err != nil {
		return err
	}
	return files.AddMemory(memory)
}
