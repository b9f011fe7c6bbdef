package takeover

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// maxFiles is the maximum number of descriptors in one message. The kernel allows 253.
const maxFiles = 200

const maxBytes = 1 << 20 // maximum size of a message

// Send writes a message with descriptors, at most maxFiles. A message is a length of 4 bytes,
// big-endian, and a JSON object.
func Send(c *net.UnixConn, m any, fds []int) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	b = append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...)
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	n, _, err := c.WriteMsgUnix(b, oob, nil)
	for err == nil && n < len(b) {
		b = b[n:]
		n, err = c.Write(b)
	}
	return err
}

// Receive reads a message and returns the descriptors that came with it. After an error it has
// closed them.
func Receive(c *net.UnixConn, m any) (files []*os.File, err error) {
	defer func() {
		if err != nil {
			closeFiles(files)
		}
	}()
	var head [4]byte
	if files, err = receiveAll(c, head[:], files); err != nil {
		return files, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > maxBytes {
		return files, ErrMessage
	}
	b := make([]byte, n)
	if files, err = receiveAll(c, b, files); err != nil {
		return files, err
	}
	if err := json.Unmarshal(b, m); err != nil {
		return files, fmt.Errorf("%w: %w", ErrMessage, err)
	}
	return files, nil
}

// receiveAll fills b, and appends the descriptors that come with its bytes to files.
func receiveAll(c *net.UnixConn, b []byte, files []*os.File) ([]*os.File, error) {
	oob := make([]byte, unix.CmsgSpace(4*maxFiles))
	for len(b) > 0 {
		n, m, flags, _, err := c.ReadMsgUnix(b, oob)
		if err != nil {
			return files, err
		}
		if n == 0 {
			return files, net.ErrClosed
		}
		if flags&unix.MSG_CTRUNC != 0 {
			return files, ErrMessage
		}
		b = b[n:]
		all, err := unix.ParseSocketControlMessage(oob[:m])
		if err != nil {
			return files, err
		}
		for i := range all {
			fds, err := unix.ParseUnixRights(&all[i])
			if err != nil {
				return files, err
			}
			for _, fd := range fds {
				files = append(files, os.NewFile(uintptr(fd), "passed"))
			}
		}
	}
	return files, nil
}

func closeFiles(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}
