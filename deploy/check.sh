#!/usr/bin/env bash
# Checks what is in this directory, without a host, a cluster or a registry of
# images: any diagnostic is a failure. What a check needs and is not there, it gets
# through apt-get or as a Go module of a fixed version.
#
#   deploy/check.sh [PART...]       all parts, or some of them
#
# PYTHON is a Python that has the Python client.
set -euo pipefail
export LC_ALL=C

go=${GO:-go} python=${PYTHON:-python3}
helm=helm.sh/helm/v4/cmd/helm@v4.3.1
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/.." && pwd)
version=$(<"$root/cmd/locksidecar/VERSION")
work=$(mktemp -d)
pids=()
finish() {
	local p
	for p in ${pids[@]+"${pids[@]}"}; do
		{ kill "$p" && wait "$p"; } 2>/dev/null || true
	done
	rm -rf "$work"
}
trap finish EXIT

fail() {
	echo "deploy: $*" >&2
	exit 1
}

# silent COMMAND...: it has to succeed and to say nothing.
silent() {
	"$@" >"$work/said" 2>&1 && [[ ! -s $work/said ]] || fail "$*: $(<"$work/said")"
}

# good COMMAND...: it has to succeed; what it says is for when it does not.
good() {
	"$@" >"$work/said" 2>&1 || fail "$*: $(<"$work/said")"
}

# refused WHY COMMAND...: it has to fail and say why. It shows that a check can fail.
refused() {
	local why=$1
	shift
	! "$@" >"$work/said" 2>&1 || fail "not refused: $*"
	grep -q -- "$why" "$work/said" || fail "refused, but not for $why: $(<"$work/said")"
}

# need COMMAND PACKAGE: the command, from Debian's package.
need() {
	command -v "$1" >/dev/null || apt install -qy --no-install-recommends "$2"
}

apt() {
	local sudo=
	[[ $(id -u) == 0 ]] || sudo=sudo
	good $sudo apt-get update -q
	good $sudo env DEBIAN_FRONTEND=noninteractive apt-get "$@"
}

# program builds what is released, linked statically, as $work/locksidecar.
program() {
	[[ -x $work/locksidecar ]] ||
		GO=$go "$root/cmd/locksidecar/build.sh" "$work/locksidecar"
}

# checker builds the strict readers of formats, as $work/check.
checker() {
	[[ -x $work/check ]] || (cd "$here/check" && "$go" vet . && "$go" build -o "$work/check" .)
}

# serve UPSTREAM starts a daemon at $LOCKSIDECAR_SOCKET.
serve() {
	program
	LOCKSIDECAR_SOCKET=$(mktemp -d "$work/XXXX")/s.sock
	export LOCKSIDECAR_SOCKET
	"$work/locksidecar" serve --upstream "$1" 2>"$work/log" &
	pids+=($!)
	until "$work/locksidecar" health -q; do
		kill -0 $! 2>/dev/null || fail "the daemon ended: $(<"$work/log")"
	done
}

# For the units: a host of which systemd-analyze is told that it is one.
check_systemd() {
	need systemd-analyze systemd
	local r=$work/host file start flag
	mkdir -p "$r"/{bin,usr/bin,etc/systemd/system,usr/lib/systemd}
	cp -r /lib/systemd/system "$r/usr/lib/systemd/system"
	ln -s usr/lib "$r/lib"
	for file in bin/kill usr/bin/locksidecar; do
		install -m 0755 /dev/null "$r/$file"
	done
	cp "$here"/systemd/locksidecar.{service,socket} "$r/etc/systemd/system"
	local verify=(systemd-analyze verify --root="$r" locksidecar.service locksidecar.socket)
	silent "${verify[@]}"
	# Of a key that does not exist it only speaks, and ends with 0.
	echo Nonsense=1 >>"$r/etc/systemd/system/locksidecar.socket"
	good "${verify[@]}"
	grep -q Nonsense "$work/said" || fail "systemd-analyze verify did not see a wrong key"
	good systemd-analyze security --offline=true --threshold=20 "$here/systemd/locksidecar.service"
	tail -1 "$work/said"

	good systemd-sysusers --root="$r" "$here/systemd/locksidecar.sysusers.conf"
	grep -q '^locksidecar:' "$r/etc/group" || fail "no group locksidecar"
	silent systemd-tmpfiles --root="$r" --create "$here/systemd/locksidecar.tmpfiles.conf"
	[[ $(readlink "$r/run/locksidecar/locksidecar.sock.admin") == ../locksidecar-daemon/locksidecar.sock.admin ]] || fail "no link to the admin socket"

	# The command that the unit starts is one that the program knows.
	program
	read -ra start < <(sed -n 's/^ExecStart=[^ ]* //p' "$here/systemd/locksidecar.service")
	good "$work/locksidecar" "${start[0]}" --help
	for flag in "${start[@]:1}"; do
		grep -q -- " ${flag%%=*} " "$work/said" || fail "serve has no flag ${flag%%=*}"
	done
	good "$work/locksidecar" config check --config "$here/locksidecar.example.yaml"
}

# promtool without its server, which Debian's package would start.
promtool() {
	local have=${XDG_CACHE_HOME:-$HOME/.cache}/locksidecar/promtool
	if ! type -P promtool >"$work/promtool" && [[ ! -x $have ]]; then
		mkdir "$work/prometheus"
		(cd "$work/prometheus" && apt download prometheus && dpkg-deb -x ./*.deb .)
		mkdir -p "${have%/*}"
		mv "$work/prometheus/usr/bin/promtool" "$have"
	fi
	[[ -s $work/promtool ]] || echo "$have" >"$work/promtool"
	"$(<"$work/promtool")" "$@"
}

check_monitoring() {
	need redis-server redis-server
	need curl curl
	checker
	local rules=$here/prometheus/locksidecar.rules.yaml tests=$here/prometheus/locksidecar.rules_test.yaml alert names
	good promtool check rules "$rules"
	good promtool test rules "$tests"
	mkdir "$work/rules"
	cp "$tests" "$work/rules"
	sed 's/{reason=~"expired|gone"}//' "$rules" >"$work/rules/${rules##*/}"
	refused LocksidecarLocksLost promtool test rules "$work/rules/${tests##*/}"
	for alert in $(sed -n 's/.*alert: //p' "$rules"); do
		grep -q "exp_samples: .*alertname=\"$alert\"" "$tests" || fail "no test has $alert fire"
		grep -qx "## $alert" "$root/docs/operate/runbook.md" || fail "runbook.md says nothing of $alert"
		grep -q "runbook.md#${alert,,}\$" "$rules" || fail "$alert does not name its section of runbook.md"
	done
	"$work/check" dashboard "$here/grafana/locksidecar-dashboard.json" >"$work/dashboard.yaml"
	good promtool check rules "$work/dashboard.yaml"

	# What they name is what a daemon has.
	redis-server --port 0 --unixsocket "$work/redis" --save '' --dir "$work" >/dev/null &
	pids+=($!)
	until [[ -S $work/redis ]]; do kill -0 $! || fail "no Redis"; done
	serve "unix://$work/redis"
	curl -fsS --unix-socket "$LOCKSIDECAR_SOCKET.admin" http://localhost/metrics >"$work/metrics"
	good promtool check metrics <"$work/metrics"
	sed -n 's/^# TYPE \([^ ]*\) histogram$/\1_bucket\n\1_sum\n\1_count/p; s/^# TYPE \([^ ]*\) .*/\1/p' "$work/metrics" | sort -u >"$work/there"
	names=$(sed 's/annotations:.*//' "$rules" "$work/dashboard.yaml" "$here/grafana/locksidecar-dashboard.json" |
		grep -oE '\b(locksidecar|process|go)_[a-z_]+' | sort -u | comm -23 - "$work/there")
	[[ -z $names ]] || fail "there are no metrics" $names
}

# schemas VERSION FILE: its objects are valid in that version of Kubernetes. A kind that is not
# Kubernetes' own has no schema there.
schemas() {
	if [[ ! -d $work/schemas ]]; then
		"$python" -m venv "$work/schemas"
		good "$work/schemas/bin/pip" install -q --disable-pip-version-check kubernetes-validate==1.37.0
	fi
	"$work/schemas/bin/kubernetes-validate" --strict -k "$1.0" "$2"
}

# manifests FILE: its objects are what Kubernetes takes, and the daemon takes its configuration.
manifests() {
	local v
	good "$work/check" manifests "$1"
	cat "$work/said"
	for v in "${kubernetes[@]}"; do
		good schemas "$v" "$1"
	done
	if "$work/check" config "$1" >"$work/config.yaml" 2>"$work/said"; then
		good "$work/locksidecar" config check --config "$work/config.yaml"
	fi
}

check_kubernetes() {
	checker
	program
	local chart=$here/helm/locksidecar f
	local kubernetes=(1.35 1.36 1.37) # the last three
	for f in "$here"/kubernetes/*.yaml; do
		manifests "$f"
		[[ $(sed -n 's/ *image: .*\/locksidecar://p' "$f") == "$version" ]] || fail "${f##*/} has another version"
	done
	sed 's/startupProbe:/startupProb:/' "$here/kubernetes/sidecar.yaml" >"$work/wrong.yaml"
	refused 'unknown field' "$work/check" manifests "$work/wrong.yaml"
	refused startupProb schemas "${kubernetes[0]}" "$work/wrong.yaml"

	grep -qx "version: $version" "$chart/Chart.yaml" && grep -qx "appVersion: $version" "$chart/Chart.yaml" || fail "Chart.yaml has another version"
	good "$go" run "$helm" lint --strict "$chart"
	! grep -E '\[(WARNING|ERROR)\]' "$work/said" || fail "helm lint"
	"$go" run "$helm" template locks "$chart" >"$work/default.yaml"
	manifests "$work/default.yaml"
	"$go" run "$helm" template locks "$chart" -f "$here/helm/testdata/full.yaml" >"$work/full.yaml"
	manifests "$work/full.yaml"
	# A change of the configuration is reloaded: it restarts no daemon.
	"$go" run "$helm" template locks "$chart" --set config.ttl=5s >"$work/changed.yaml"
	[[ $(diff "$work/default.yaml" "$work/changed.yaml" | grep '^[<>]') == ">     ttl: 5s" ]] || fail "a configuration changes more than the ConfigMap"
	for f in "$here"/helm/testdata/bad-*.yaml; do
		refused 'specifications of the schema' "$go" run "$helm" template locks "$chart" -f "$f"
	done
}

check_packages() {
	need bsdtar libarchive-tools
	need rpm rpm
	program
	local at what p
	mkdir "$work"/{once,again,deb,rpm}
	good "$here/packages/nfpm.sh" "$work/locksidecar" "$work/once"
	good "$here/packages/nfpm.sh" "$work/locksidecar" "$work/again"
	silent diff -r "$work/once" "$work/again"
	dpkg-deb -x "$work"/once/*.deb "$work/deb"
	bsdtar -xpf "$work"/once/*.rpm -C "$work/rpm" 2>/dev/null
	for p in deb rpm; do
		at=/usr/share/licenses/locksidecar/LICENSE
		[[ $p == rpm ]] || at=/usr/share/doc/locksidecar/copyright
		{ cat "$here/packages/contents.txt" && echo "-rw-r--r-- $at"; } | sort >"$work/want"
		find "$work/$p" \( ! -type d -o -empty \) -printf '%M /%P\n' | sort >"$work/have"
		silent diff "$work/want" "$work/have"
		[[ -z $(find "$work/$p" -mindepth 1 -type d ! -empty ! -perm 0755) ]] || fail "$p: directories that not all can read"
		what=$("$work/$p/usr/bin/locksidecar" version)
		[[ $what == "locksidecar $version "* ]] || fail "$p: the program says $what"
	done
	[[ $(rpm -qp --qf '%{BUILDHOST}' "$work"/once/*.rpm) == localhost ]] || fail "rpm: it says where it was built"
	[[ $(rpm -qpc "$work"/once/*.rpm) == /etc/locksidecar/locksidecar.yaml ]] || fail "rpm: the configuration is no configuration"
	[[ $(dpkg-deb --ctrl-tarfile "$work"/once/*.deb | tar -xO ./conffiles) == /etc/locksidecar/locksidecar.yaml ]] || fail "deb: the configuration is no configuration"
	for p in "$here"/packages/scripts/*.sh; do
		silent sh -n "$p"
	done
	ls "$work/once"
}

# No image can be had here: the file is read, and what it does is done as it says.
check_container() {
	need file file
	checker
	good "$work/check" containerfile "$here/container/Containerfile"
	sed 's/^ENTRYPOINT.*/ENTRYPOINT locksidecar/' "$here/container/Containerfile" >"$work/wrong"
	refused 'entry point' "$work/check" containerfile "$work/wrong"
	mkdir "$work/context"
	(cd "$root" && git ls-files -z -co --exclude-standard |
		while IFS= read -r -d '' f; do [[ ! -e $f ]] || printf '%s\0' "$f"; done |
		tar -cf - --anchored -X "$here/container/Containerfile.dockerignore" --null -T - | tar -xf - -C "$work/context")
	GO=$go "$work/context/cmd/locksidecar/build.sh" "$work/static"
	good file "$work/static"
	grep -q 'statically linked' "$work/said" || fail "$(<"$work/said")"
	good "$work/static" version
}

check_compose() {
	checker
	good "$work/check" compose "$here/compose/compose.yaml"
	good "$work/check" containerfile "$here/compose/app/Containerfile"
	sed 's/cap_drop/cap_drops/' "$here/compose/compose.yaml" >"$work/compose.yaml"
	refused cap_drops "$work/check" compose "$work/compose.yaml"

	# The two programs, here.
	if ! "$python" -c 'import locksidecar' 2>/dev/null; then
		"$python" -m venv "$work/venv"
		python=$work/venv/bin/python
		good "$python" -m pip install -q --disable-pip-version-check "$root/clients/python"
	fi
	serve memory:
	local app=$here/compose/app/app.py other
	ROUNDS=5 TAKES=0 NAME=orders "$python" "$app" >"$work/orders" &
	other=$!
	ROUNDS=5 TAKES=0 NAME=reports "$python" "$app" >"$work/reports"
	wait $other
	[[ $(sort -u "$work/orders" "$work/reports" | wc -l) == 10 ]] || fail "the programs said $(cat "$work/orders" "$work/reports")"
}

parts=("$@")
[[ $# != 0 ]] || parts=(systemd monitoring kubernetes packages container compose)
for part in "${parts[@]}"; do
	declare -F "check_$part" >/dev/null || fail "there is no part $part: systemd monitoring kubernetes packages container compose"
	echo "deploy: $part"
	"check_$part"
done
echo "deploy: as it should be"
