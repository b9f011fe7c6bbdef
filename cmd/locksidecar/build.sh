#!/bin/sh
# Builds the program as it is released: linked statically, reproducible and small.
#
#   cmd/locksidecar/build.sh OUT
#
# TAGS=noetcd,nootel leaves out etcd and OpenTelemetry: 17 MiB.
#
# The linker drops unused methods only if no part of the program looks methods up by name. The
# tracing of gRPC does so. HTTP/2 of net/http is unused: gRPC has its own. Inlining makes these
# packages larger, and no request to the default stores is in them. Functions begin at multiples of
# 16 bytes, as C compilers align them: the linker's 32 for amd64 make the program 1 % larger.
set -eu
case $1 in
/*) out=$1 ;;
*) out=$PWD/$1 ;;
esac
cd "$(dirname "$0")"
for packages in compress crypto/ecdsa crypto/elliptic crypto/hpke crypto/rsa crypto/x509 database/sql \
	encoding/asn1 encoding/json flag fmt html log/slog math/big mime net/http net/textproto net/url os/exec \
	regexp text/template vendor/golang.org \
	google.golang.org go.etcd.io github.com/jackc github.com/go-sql-driver github.com/a-h go.uber.org \
	github.com/grpc-ecosystem github.com/prometheus golang.org/x/text github.com/spf13 go.yaml.in \
	github.com/locksidecar/locksidecar/cmd \
	github.com/locksidecar/locksidecar/daemon/admin \
	github.com/locksidecar/locksidecar/upstream/both \
	github.com/locksidecar/locksidecar/upstream/etcd \
	github.com/locksidecar/locksidecar/upstream/mysql \
	github.com/locksidecar/locksidecar/upstream/postgres \
	github.com/locksidecar/locksidecar/upstream/redlock \
	github.com/locksidecar/locksidecar/upstream/storeurl \
	github.com/locksidecar/locksidecar/upstream/zookeeper \
	github.com/locksidecar/locksidecar/protocol/conformance; do
	set -- "$@" "-gcflags=$packages/...=-l"
done
shift
CGO_ENABLED=0 exec ${GO:-go} build -trimpath -tags="grpcnotrace,nethttpomithttp2${TAGS:+,$TAGS}" \
	-ldflags='-s -w -funcalign=16' "$@" -o "$out" .
