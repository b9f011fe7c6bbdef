package takeover

import (
	"fmt"
	"net"
	"time"
)

// Giver is the serving process of a takeover.
type Giver interface {
	// Offer returns the offer, and the descriptors that belong to it. An error refuses the
	// takeover.
	Offer() (o Offer, locks []int, err error)
	// FreezeTime returns how long the process may be frozen.
	FreezeTime() time.Duration
	// Freeze stops the process: no client is served and no request is sent until Thaw. It fails if
	// that takes longer than until end. The caller calls Thaw even after an error, unless the takeover
	// is committed.
	Freeze(end time.Time) error
	Thaw()
	// Leave returns the snapshot and its description, and adds the descriptors that go with it to
	// files. The caller adds the memory file of the snapshot last.
	Leave(files *Files) (snapshot []byte, contents Contents, err error)
	// Commit calls write, which commits the takeover. The process may refuse that with an error. If
	// write returns no error, the process only ends.
	Commit(successor Request, write func() error) error
}

// Give carries out the takeover by the successor at the other end of c, which has sent request.
// After an error the serving process, giver, continues to serve.
func Give(c *net.UnixConn, request Request, giver Giver) error {
	if err := prepare(c, request, giver); err != nil {
		return err
	}
	end := time.Now().Add(giver.FreezeTime())
	_ = c.SetDeadline(end)
	err := giver.Freeze(end)
	if err == nil {
		err = passOn(c, giver)
	}
	if err == nil {
		_, err = Receive(c, &Ready{})
	}
	if err == nil {
		err = giver.Commit(request, func() error {
			_ = c.SetDeadline(time.Time{}) // the end of the freeze time does not cut the commit off
			_, err := c.Write([]byte{committed})
			return err
		})
	}
	if err != nil {
		_ = c.Close() // before Thaw, so that the successor cannot take over any more
		giver.Thaw()
	}
	return err
}

// prepare sends the offer, and waits until the successor has opened its stores.
func prepare(c *net.UnixConn, request Request, giver Giver) error {
	refuse := func(err error) error {
		_ = Send(c, Offer{Refused: err.Error()}, nil)
		return err
	}
	if request.Form != Form {
		return refuse(fmt.Errorf("%w: the successor uses form %d of the messages, this daemon form %d",
			ErrMessage, request.Form, Form))
	}
	o, locks, err := giver.Offer()
	if err != nil {
		return refuse(err)
	}
	if err := Send(c, o, locks); err != nil {
		return err
	}
	var prepared Prepared
	if _, err := Receive(c, &prepared); err != nil {
		return err
	}
	for _, s := range o.Missing(prepared.Stores) {
		err := fmt.Errorf("store %q is not the same in its configuration: reload this daemon first",
			s.Name)
		_ = Send(c, Contents{Refused: err.Error()}, nil)
		return err
	}
	return nil
}

// passOn sends the takeover state: the snapshot and every descriptor.
func passOn(c *net.UnixConn, giver Giver) error {
	var files Files
	defer files.Close()
	snapshot, contents, err := giver.Leave(&files)
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

// Park adds a parked state to files, in this order: the locks of the offer, the descriptors of the
// frozen process giver, and the memory file.
func Park(files *Files, o Offer, locks []int, giver Giver) error {
	for _, fd := range locks {
		files.AddFD(fd)
	}
	snapshot, contents, err := giver.Leave(files)
	if err != nil {
		return err
	}
	memory, err := encodeParked(o, contents, snapshot)
	if err != nil {
		return err
	}
	return files.AddMemory(memory)
}
