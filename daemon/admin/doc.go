// Package admin serves people and their machines over HTTP: metrics, health, the page, views as
// JSON, forced unlocks, and the request of a successor to take over. It listens on a Unix socket
// beside the socket for locks, and on TCP if asked for. On TCP it answers metrics and health to
// everybody, and views only to this host.
//
// Server owns the goroutines of the listeners. Finish waits for the requests in flight, and Close
// for the goroutines, too. Viewer makes the views, and Viewer.Remember keeps their history until
// the daemon halts.
package admin
