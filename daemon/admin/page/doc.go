// Package page shows a view of a daemon as HTML: problems first. The page is complete without a
// script; the script keeps it up to date. Keys and client names are untrusted text: templ escapes
// them, and Policy allows only scripts from this package. The package has no goroutines.
//
// The page is a few tables, which this package fills with parts of text (tables.go), so that the
// templates stay few and the program small.
package page
