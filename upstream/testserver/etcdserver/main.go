// Command etcdserver is the etcd server of the tests. With ctl as its first argument it is etcdctl.
// It calls their own main functions. It is a separate module, so that the product's go.mod does not
// require a server.
package main

import (
	"os"

	"go.etcd.io/etcd/etcdctl/v3/ctlv3"
	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "ctl" {
		os.Args = append([]string{"etcdctl"}, os.Args[2:]...)
		ctlv3.MustStart()
		return
	}
	etcdmain.Main(os.Args)
}
