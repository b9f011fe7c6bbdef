// Package browser tests the page in a real browser: Debian's chromium, without a screen. It is
// a module of its own, so that what drives the browser is not the daemon's.
package browser
