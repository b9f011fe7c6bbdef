#!/usr/bin/env bash
# Builds the deb and the rpm of a program that build.sh (or go build) has built.
#
#   deploy/packages/nfpm.sh PROGRAM OUT     OUT is a directory
#
# The time in them is SOURCE_DATE_EPOCH, by default that of the last commit. ARCH is PROGRAM's,
# by default this machine's.
set -euo pipefail

[[ $# == 2 ]] || { echo "usage: nfpm.sh PROGRAM OUT" >&2; exit 1; }
go=${GO:-go}
PROGRAM=$(realpath "$1")
out=$(realpath "$2")
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
VERSION=$(<cmd/locksidecar/VERSION)
ARCH=${ARCH:-$("$go" env GOARCH)}
export PROGRAM SOURCE_DATE_EPOCH VERSION ARCH
for packager in deb rpm; do
	"$go" run github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.45.2 package -f deploy/packages/nfpm.yaml -p "$packager" -t "$out"
done
