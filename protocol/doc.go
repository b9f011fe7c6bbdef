// Package protocol implements the language that clients and the daemon speak over a Unix socket:
// frames, messages and codes. PROTOCOL.md is its normative text; vectors/ has its golden frames.
//
// Everything here is a pure function over bytes: no I/O, no goroutines, no locks. Values are
// decoded by hand with bounds, never into any: the msgpack library allocates whatever a header
// claims, and a header of five bytes can claim four billion entries.
package protocol
