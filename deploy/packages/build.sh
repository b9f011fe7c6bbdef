#!/usr/bin/env bash
# Builds what is released, from the last commit and nothing else: the Python
# client as sdist and wheel, the Java client with its sources and javadoc, and
# the program for this platform, linked statically, by itself and as deb and rpm.
# With their checksums.
#
#   deploy/packages/build.sh OUT        OUT is new or empty
#
# One commit gives the same bytes wherever and whenever it is built with the
# same Go, JDK, Maven, zlib and hatchling (pyproject.toml names which). The time
# in the Python packages is SOURCE_DATE_EPOCH, by default that of the commit;
# the time in the jars stands in pom.xml, so that a plain mvn package makes them
# too. PYTHON is a Python that has hatchling.
set -euo pipefail
umask 022 # it gets into the jars with sources and javadoc

fail() {
	echo "build.sh: $*" >&2
	exit 1
}

[[ $# == 1 ]] || fail "usage: build.sh OUT"
go=${GO:-go} python=${PYTHON:-python3}
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
mkdir -p "$1"
out=$(cd "$1" && pwd)
[[ -z $(ls -A "$out") ]] || fail "$out is not empty"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

[[ -z $(git -C "$root" status --porcelain) ]] || echo "build.sh: what is not committed is not in it" >&2
git clone -q -c core.autocrlf=false "$root" "$work/locksidecar"
cd "$work/locksidecar"
version=$(<cmd/locksidecar/VERSION)
for tag in $(git tag --points-at HEAD --list 'v*'); do
	[[ $tag == "v$version" ]] || fail "the commit is tagged $tag, cmd/locksidecar/VERSION says $version"
done
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}

want=$(sed -n 's/^package = \["hatchling==\(.*\)"\]$/\1/p' clients/python/pyproject.toml)
have=$("$python" -c 'from importlib.metadata import version; print(version("hatchling"))') || fail "$python has no hatchling"
[[ $have == "$want" ]] || fail "$python has hatchling $have, pyproject.toml wants $want"
(cd clients/python && "$python" -m hatchling build -d "$out" -t sdist -t wheel >"$work/log" 2>&1) || fail "$(<"$work/log")"

mvn -q -B -f clients/java/pom.xml package -Dmaven.test.skip=true
cp clients/java/target/locksidecar-client-"$version"*.jar "$out"
cp clients/java/pom.xml "$out/locksidecar-client-$version.pom"

program=$out/locksidecar-$version-$("$go" env GOOS)-$("$go" env GOARCH)
GOFLAGS=-buildvcs=true GO=$go cmd/locksidecar/build.sh "$program"
deploy/packages/nfpm.sh "$program" "$out" >"$work/log" 2>&1 || fail "$(<"$work/log")"

cd "$out"
LC_ALL=C
sha256sum -- * >"$work/sums"
mv "$work/sums" SHA256SUMS
