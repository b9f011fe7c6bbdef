// Package vectors holds the golden frames, for programs that test others against
// them. README.md says what is in the files.
package vectors

import "embed"

// Files are the golden frames that a daemon would send.
//
//go:embed replies*.txt pushes*.txt bad-replies.txt
var Files embed.FS
