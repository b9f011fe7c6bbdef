// Package top makes the output of locksidecar top. From views of the daemon and typed keys, Top
// makes the lines for a screen of any size, or plain text for a pipe. It does no I/O and has
// neither a clock nor a goroutine, so tests can use it as a value. Package terminal does the rest.
//
// Keys and names, which come from clients, pass through terminal.Clean before they are shown.
package top
