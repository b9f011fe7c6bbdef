#!/usr/bin/env bash
# Installs what build.sh has made as users do, each into a clean environment. There the daemon
# starts, a lock is taken, another client is refused it, and the daemon ends when it is told to.
#
#   deploy/packages/release-check.sh DIST [PART...]     all parts, or some of them
#
# It runs as root on linux/amd64, because it changes roots. What it needs and is not there, it gets
# through apt-get. No macOS and no arm64 are here: programs for arm64 run in an emulator, and of
# those for macOS only the format is checked.
set -euo pipefail
export LC_ALL=C

go=${GO:-go} python=${PYTHON:-python3}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
dist=$(cd "$1" && pwd)
version=$(<"$here/../../cmd/locksidecar/VERSION")
program=$dist/locksidecar-$version
work=$(mktemp -d)
chmod 0755 "$work" # the image's user has to get through
daemon=
# clean NAME=VALUE... COMMAND...: nothing of this environment is COMMAND's.
clean=(env -i -C "$work" HOME="$work")
# in_root ROOT: with a /proc of its own, as in a container.
in_root=("$(type -P unshare)" --mount-proc --root)
finish() {
	[[ -z $daemon ]] || { kill "$daemon" && wait "$daemon"; } 2>/dev/null || true
	rm -rf "$work"
}
trap finish EXIT

fail() {
	echo "release: $*" >&2
	exit 1
}

need() {
	command -v "$1" >/dev/null && return
	{ apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends "$2"; } >"$work/said" 2>&1 ||
		fail "$2: $(<"$work/said")"
}

# start INSIDE OUTSIDE...: OUTSIDE runs the program from here, and INSIDE from within its environment.
start() {
	local inside=$1 code=0
	shift
	"${clean[@]}" "$@" serve --log-format=json 2>"$work/log" &
	daemon=$!
	until "${clean[@]}" "$@" health -q; do
		kill -0 "$daemon" 2>/dev/null || fail "the daemon ended: $(<"$work/log")"
	done
	"${clean[@]}" "$@" lock release -- $inside version >"$work/out"
	grep -q "$said" "$work/out" || fail "not under a lock: $inside version"
	"${clean[@]}" "$@" lock release -- $inside lock -n release -- $inside version >"$work/out" 2>&1 || code=$?
	[[ $code == 75 ]] || fail "a held lock is given to another client ($code): $(<"$work/out")"
}

# stop NAME ends the daemon, which has nothing left to complain of.
stop() {
	kill "$daemon"
	wait "$daemon" || fail "the daemon ended with $?: $(<"$work/log")"
	daemon=
	echo "release: $1: installed, and a lock was taken"
}

# An empty root has no library, so the program is static.
check_static() {
	mkdir -p "$work/static/proc"
	cp "$program-linux-amd64" "$work/static/locksidecar"
	start /locksidecar "${in_root[@]}" "$work/static" /locksidecar
	stop "static program"
}

check_foreign() {
	need file file
	need qemu-aarch64-static qemu-user-static
	local pair
	for pair in "linux-arm64:ELF 64-bit LSB executable, ARM aarch64.*statically linked" \
		"darwin-amd64:Mach-O 64-bit x86_64 executable" "darwin-arm64:Mach-O 64-bit arm64 executable"; do
		file -b "$program-${pair%%:*}" | grep -q "^${pair#*:}" || fail "${pair%%:*} is $(file -b "$program-${pair%%:*}")"
	done
	local emulated="$(command -v qemu-aarch64-static) $program-linux-arm64"
	start "$emulated" LOCKSIDECAR_SOCKET="$work/arm64.sock" $emulated
	stop "program for arm64, emulated"
}

# pip gets nothing from an index but what the client depends on.
check_wheel() {
	local platform socket=LOCKSIDECAR_SOCKET=$work/wheel.sock bin=$work/venv/bin
	"$python" -m pip download -q --disable-pip-version-check -d "$work/index" msgpack
	cp "$dist"/*.whl "$work/index"
	"${clean[@]}" "$(type -P "$python")" -m venv "$work/venv"
	"${clean[@]}" "$bin/pip" install -q --disable-pip-version-check --no-index --find-links "$work/index" 'locksidecar[daemon]'
	start locksidecar PATH="$bin" "$socket" locksidecar
	[[ $("${clean[@]}" "$socket" "$bin/python" -W error "$here/user/user.py") == "${version/-rc./rc}" ]] || fail "the Python client has another version"
	stop "wheels"
	for platform in {manylinux_2_17,musllinux_1_1}_{x86_64,aarch64} macosx_13_0_x86_64 macosx_14_0_arm64; do
		"${clean[@]}" "$bin/pip" download -q --disable-pip-version-check --no-index --no-deps --find-links "$work/index" \
			--platform "$platform" --only-binary=:all: -d "$work/$platform" locksidecar-daemon
	done
}

# A Debian without more than it needs, for the deb and for the rpm: their scripts run in it.
check_deb() {
	debian
	cp "$dist/locksidecar_${version}_amd64.deb" "$work/debian/locksidecar.deb"
	chroot "$work/debian" dpkg -i /locksidecar.deb >"$work/out" 2>&1 || fail "$(<"$work/out")"
	installed
	stop deb
	chroot "$work/debian" dpkg --purge locksidecar >"$work/out" 2>&1 || fail "$(<"$work/out")"
	removed deb
}

check_rpm() {
	need rpm rpm
	debian
	# The package of the shell is there, but for dpkg.
	rpm --root "$work/debian" -i --nodeps "$program-1.x86_64.rpm" >"$work/out" 2>&1 || fail "$(<"$work/out")"
	installed
	stop rpm
	rpm --root "$work/debian" -e locksidecar >"$work/out" 2>&1 || fail "$(<"$work/out")"
	removed rpm
}

debian() {
	[[ ! -d $work/debian ]] || return 0
	need mmdebstrap mmdebstrap
	mmdebstrap -q --variant=essential --include=systemd "$(. /etc/os-release && echo "$VERSION_CODENAME")" "$work/debian" >"$work/out" 2>&1 || fail "$(<"$work/out")"
}

installed() {
	grep -q '^locksidecar:' "$work/debian/etc/group" || fail "no group was made"
	start locksidecar PATH=/usr/bin "${in_root[@]}" "$work/debian" locksidecar
}

removed() {
	[[ ! -e $work/debian/usr/bin/locksidecar ]] || fail "$1: the program is still there"
}

# umoci reads one platform, so regctl takes it out of the index.
check_image() {
	need umoci umoci
	local arch entry user image=ocidir://$work/image:$version
	GOBIN=$work "$go" install github.com/regclient/regclient/cmd/regctl@v0.11.7
	"$work/regctl" image import "$image" "$program-image.tar"
	for arch in amd64 arm64; do
		"$work/regctl" image copy -p "linux/$arch" "$image" "ocidir://$work/$arch:$version" >/dev/null
		umoci unpack --image "$work/$arch:$version" "$work/bundle-$arch"
		cmp "$work/bundle-$arch/rootfs/usr/bin/locksidecar" "$program-linux-$arch" || fail "the image has another program"
	done
	config() { "$work/regctl" image inspect -p linux/amd64 "$image" --format "{{$1}}"; }
	[[ $(config 'join .Config.Cmd " "') == "serve --log-format=json" ]] || fail "the image starts something else"
	entry=$(config 'join .Config.Entrypoint " "')
	user=$(config .Config.User)
	mkdir "$work/bundle-amd64/rootfs/proc"
	start "$entry" $(config 'join .Config.Env " "') "${in_root[@]}" "$work/bundle-amd64/rootfs" -S "${user%:*}" -G "${user#*:}" "$entry"
	stop image
}

# From a repository into an empty local one, as a project's dependency.
check_maven() {
	local jar=$dist/locksidecar-client-$version socket=$work/maven.sock
	local project=$work/project repository=file://$work/repository
	mvn -q -B org.apache.maven.plugins:maven-deploy-plugin:3.1.3:deploy-file -Durl="$repository" \
		-DpomFile="$jar.pom" -Dfile="$jar.jar" -Dsources="$jar-sources.jar" -Djavadoc="$jar-javadoc.jar"
	cp -r "$here/user/java" "$project"
	mvn -q -B -f "$project" -Dmaven.repo.local="$work/m2" -Dclient="$version" -Drepository="$repository" compile
	start "$program-linux-amd64" LOCKSIDECAR_SOCKET="$socket" "$program-linux-amd64"
	local modules=$project/target/classes:$work/m2/io/locksidecar/locksidecar-client/$version/locksidecar-client-$version.jar
	[[ $("${clean[@]}" LOCKSIDECAR_SOCKET="$socket" "$(type -P java)" -p "$modules" -m user/user.User) == "$version" ]] ||
		fail "the Java client has another version"
	stop "Maven artifact"
}

[[ $(id -u) == 0 ]] || fail "it has to be root"
(cd "$dist" && sha256sum -c --quiet SHA256SUMS)
said="^locksidecar $version (.*, commit $("$program-linux-amd64" version | sed -n 's/.*, commit \([0-9a-f]*\))$/\1/p'))$"
parts=("${@:2}")
[[ $# != 1 ]] || parts=(static foreign wheel deb rpm image maven)
for part in "${parts[@]}"; do
	declare -F "check_$part" >/dev/null || fail "there is no part $part: static foreign wheel deb rpm image maven"
	"check_$part"
done
