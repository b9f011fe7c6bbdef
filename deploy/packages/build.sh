#!/usr/bin/env bash
# Builds what is released, from the last commit and nothing else: the Python
# client as sdist and wheel, the Java client with its sources and javadoc, and
# the program for Linux and macOS, by itself, as wheels, deb, rpm and image. With
# their checksums.
#
#   deploy/packages/build.sh OUT        OUT is new or empty
#
# One commit gives the same bytes wherever and whenever it is built with the
# same Go, JDK, Maven, zlib, and the hatchling and certifi that pyproject.toml
# names. The time in the packages is SOURCE_DATE_EPOCH, by default that of the
# commit; the time in the jars stands in pom.xml, so that a plain mvn package makes
# them too. PYTHON is a Python that has hatchling and certifi.
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

while read -r package want; do
	have=$("$python" -c 'import importlib.metadata as m, sys; print(m.version(sys.argv[1]))' "$package") || fail "$python has no $package"
	[[ $have == "$want" ]] || fail "$python has $package $have, pyproject.toml wants $want"
done < <(sed -n '/^package = /{s/.*\[//; s/].*//; s/==/ /g; s/, */\n/g; s/"//g; p}' clients/python/pyproject.toml)

# wheel DIR TARGET...: by hatchling, which says much.
wheel() {
	(cd "$1" && "$python" -m hatchling build -d "$out" "${@:2}" >"$work/log" 2>&1) || fail "$(<"$work/log")"
}
wheel clients/python -t sdist -t wheel

echo "build.sh: the Java client" >&2
mvn -q -B -f clients/java/pom.xml package -Dmaven.test.skip=true
cp clients/java/target/locksidecar-client-"$version"*.jar "$out"
cp clients/java/pom.xml "$out/locksidecar-client-$version.pom"

# The program is static, so one wheel is for glibc and musl. Go's own bound for macOS is 12.
while read -r os arch platform; do
	echo "build.sh: the program for $os/$arch" >&2 # the first time, it takes minutes
	program=$out/locksidecar-$version-$os-$arch
	GOOS=$os GOARCH=$arch GOFLAGS=-buildvcs=true GO=$go cmd/locksidecar/build.sh "$program"
	PROGRAM=$program PLATFORM=$platform wheel deploy/packages/wheel -t wheel
	[[ $os == darwin ]] || ARCH=$arch GO=$go deploy/packages/nfpm.sh "$program" "$out" >"$work/log" 2>&1 || fail "$(<"$work/log")"
done <<-'END'
	linux amd64 manylinux_2_17_x86_64.manylinux2014_x86_64.musllinux_1_1_x86_64
	linux arm64 manylinux_2_17_aarch64.manylinux2014_aarch64.musllinux_1_1_aarch64
	darwin amd64 macosx_12_0_x86_64
	darwin arm64 macosx_12_0_arm64
END
echo "build.sh: the image" >&2
GO=$go PYTHON=$python deploy/packages/image.sh "$out/locksidecar-$version-" "$out/locksidecar-$version-image.tar" >"$work/log" 2>&1 || fail "$(<"$work/log")"

cd "$out"
LC_ALL=C
sha256sum -- * >"$work/sums"
mv "$work/sums" SHA256SUMS
