#!/usr/bin/env bash
# Checks the model: each property by an exhaustive search, and that each guard taken out gives a
# counterexample to the property that it is there for.
#
#   cache/model/run.sh              both tables; BIG=1 with larger bounds
#   cache/model/run.sh trace GUARD  the steps of the counterexample, one a line
#
# ONLY='order|NO_BOUND' does some of it. spin, gcc and awk are needed. JOBS searches run at once, 2 unless said otherwise.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
jobs=${JOBS:-2}
mem=${MEMLIM:-4096} # MiB a search

# name, property, bounds
searches=$(grep -v '^#' "$here/searches${BIG:+-big}")
# guard, property, depth, bounds
guards=$(grep -v '^#' "$here/guards")

fail() { echo "$*" >&2; exit 1; }

# build DIR SPIN-FLAGS GCC-FLAGS makes DIR/pan.
build() {
	cp "$here"/*.pml "$1"
	(cd "$1" && spin -a $2 lease.pml >spin.out 2>&1) || { cat "$1/spin.out"; return 1; }
	(cd "$1" && gcc $3 "-DMEMLIM=$mem" -DNOREDUCE -w -o pan pan.c)
}

# timed DIR ARGUMENT… runs DIR/pan, and leaves its seconds of CPU.
timed() {
	local dir=$1 TIMEFORMAT=%U
	shift
	{ time (cd "$dir" && ./pan "$@" >out 2>&1 || true); } 2>"$dir/seconds"
}

# search NAME P BOUNDS: all of it, and no error.
search() {
	local dir=$work/s.$1 hash=23 how opt="-O2 -DSAFETY"
	[[ -z ${BIG:-} ]] || hash=25
	how=(-m20000000 -n -w$hash)
	mkdir "$dir"
	[[ $2 == 4 ]] && how+=(-a -f) opt="-O2 -DNFAIR=3"
	build "$dir" "-DP=$2 -DALIKE -DWITNESS $3" "$opt"
	timed "$dir" "${how[@]}"
	local verdict=holds
	grep -q 'errors: 0' "$dir/out" || verdict=VIOLATED
	grep -q 'elapsed' "$dir/out" || verdict=UNFINISHED
	grep -qE 'max search depth too small|out of memory|memory bound' "$dir/out" && verdict=UNFINISHED
	sed -n 's/^seen //p' "$dir/out" >"$dir/seen"
	row "$1" "$2" "${3:--}" "$verdict" $(figures "$dir/out") >"$dir/row"
}

# figures OUT: states, transitions, depth, seconds of CPU, MiB
figures() {
	awk -v "e=$(<"${1%out}seconds")" '/states, stored/ {s = $1} /transitions \(=/ {t = $1} /depth reached/ {d = $6 + 0}
		/total actual memory/ {m = int($1)} /equivalent memory/ {if (!m) m = int($1)}
		END {print s + 0, t + 0, d + 0, e + 0, m + 0}' "$1"
}

# guard NAME P "DEPTH BOUNDS": the shortest counterexample, by breadth; of a wait without end any one, which is short where the
# search goes no deeper than DEPTH. What it takes to search a smaller depth in vain is more than all else here.
guard() {
	local dir=$work/g.$1.$2 depth=${3%% *} bounds=${3#* } opt="-O0 -DSAFETY -DBFS"
	mkdir "$dir"
	[[ $2 == 4 ]] && opt="-O1 -DNFAIR=3"
	local flags="-DP=$2 ${alike:--DALIKE} -D$1 $bounds"
	build "$dir" "$flags" "$opt"
	if [[ $2 == 4 ]]; then
		local m
		for m in "$depth" 1000000; do
			timed "$dir" -a -f "-m$m"
			[[ ! -e $dir/lease.pml.trail ]] || break
		done
	else
		timed "$dir"
	fi
	local verdict=NOT steps=- want='assertion violated'
	[[ $2 == 4 ]] && want='acceptance cycle'
	if grep -q "pan:1: $want" "$dir/out" && [[ -e $dir/lease.pml.trail ]]; then
		verdict=found
		steps=$(steps "$dir" "$flags" | grep -c =)
	fi
	local f
	f=($(figures "$dir/out"))
	row "$1" "$2" "$bounds" "$verdict" "$steps" "${f[0]}" "${f[3]}" >"$dir/row"
}

# steps DIR FLAGS prints the counterexample, one step a line.
steps() { (cd "$1" && spin -t -p -g $2 lease.pml) | awk -f "$here/trace.awk"; }

row() { printf '| %s' "$1"; shift; printf ' | %s' "$@"; printf ' |\n'; }

# trace NAME prints the counterexample of a guard.
trace() {
	local line
	line=$(grep "^$1 " <<<"$guards" | head -n 1) || fail "no guard $1"
	read -r _ p rest <<<"$line"
	alike=-UALIKE guard "$1" "$p" "$rest"
	cat "$work/g.$1.$p/row"
	steps "$work/g.$1.$p" "-DP=$p -UALIKE -D$1 ${rest#* }"
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

case ${1:-all} in
trace) trace "$2" ;;
all)
	[[ -z ${ONLY:-} ]] || searches=$(grep -E "^($ONLY) " <<<"$searches" || true) guards=$(grep -E "^($ONLY) " <<<"$guards" || true)
	export -f search guard build timed figures steps row
	export here mem work BIG=${BIG:-}
	for tool in spin gcc awk; do command -v $tool >/dev/null || fail "$tool is missing: make deps-model"; done
	{ sed 's/^/search /' <<<"$searches"; sed 's/^/guard /' <<<"$guards"; } | awk 'NF > 2' |
		xargs -P "$jobs" -d '\n' -I{} bash -euo pipefail -c 'read -r what name p rest <<<"{}"; $what $name $p "$rest"'
	row search property bounds verdict states transitions depth "CPU s" MiB
	row --- --- --- --- --- --- --- --- ---
	while read -r name _; do [[ -z $name ]] || cat "$work/s.$name/row"; done <<<"$searches"
	echo
	row "guard removed" property bounds counterexample steps states "CPU s"
	row --- --- --- --- --- --- ---
	while read -r name p _; do [[ -z $name ]] || cat "$work/g.$name.$p/row"; done <<<"$guards"
	! cat "$work"/?.*/row | grep -E 'VIOLATED|UNFINISHED|NOT' >/dev/null || fail "not as it should be"
	[[ -z ${ONLY:-} ]] || exit 0
	for n in $(sed -n 's/.*seen(\([0-9]*\)).*/\1/p' "$here"/*.pml | sort -nu); do
		grep -qx "$n" "$work"/s.*/seen || fail "seen($n) has never come about: the searches are too small"
	done
	;;
*) fail "run.sh [trace GUARD]" ;;
esac
