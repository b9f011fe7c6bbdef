#!/usr/bin/env bash
# Plants faults in a copy of the tree, one after the other, and shows that the storm finds
# each. The checkout is not touched.
#
#   bench/chaos/mutants/run.sh [MINUTES [MUTANT...]]
#
# A mutant is a patch beside this script. Its first line names the checks of which one is to find
# it, and then, where it matters, the seed to begin with. "none" is the program as it is.
set -euo pipefail

minutes=${1:-5}
go=${GO:-go}
shift || true
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

(cd "$here/.." && "$go" build -o "$work/storm" ./cmd/storm)

# build makes the program with a patch, or as it is, and its race detector.
build() {
	rm -rf "$work/tree"
	mkdir "$work/tree"
	(cd "$root" && tar --exclude=./bench --exclude=./bin --exclude=./clients --exclude=./.git --exclude=./.venv -cf - .) | tar -xf - -C "$work/tree"
	if [[ -n $1 ]]; then
		(cd "$work/tree" && GIT_CEILING_DIRECTORIES="$work" git apply -p1 "$1") || return 1
	fi
	(cd "$work/tree" && "$go" build -race -trimpath -o "$work/mutant" ./cmd/locksidecar)
}

row() { printf '%-28s %-8s %-14s %8s %8s  %s\n' "$@"; }

survived=0
row mutant verdict "found by" episodes seconds as
chosen=("$@")
if ((${#chosen[@]} == 0)); then
	chosen=(none)
	for patch in "$here"/*.patch; do chosen+=("$(basename "$patch" .patch)"); done
fi
for name in "${chosen[@]}"; do
	patch='' checks='' seed=9
	if [[ $name != none ]]; then
		patch=$here/$name.patch
		IFS=';' read -r checks first < <(sed -n '1s/^# *//p' "$patch")
		seed=${first:-9}
	fi
	if ! build "$patch" >"$work/out" 2>&1; then
		row "$name" "NO PATCH" - - - "it does not apply, or does not compile"
		cat "$work/out"
		survived=1
		continue
	fi
	began=$SECONDS
	(cd "$here/.." && "$work/storm" -minutes "$minutes" -seed $((seed)) -length 30s -stop -bin "$work/mutant" -keep '') >"$work/out" 2>&1 || true
	episodes=$(grep -c '^storm \[' "$work/out" || true)
	found=$(sed -n 's/^  VIOLATION \([^:]*\): .*/\1/p' "$work/out" | sort -u)
	by=- verdict=NOT
	while IFS= read -r check; do
		if [[ -n $check && ",$checks," == *",$check,"* ]]; then verdict=caught by=$check; fi
	done <<<"$found"
	if [[ $name == none && -z $found ]]; then verdict=clean; fi
	if [[ $verdict == NOT ]]; then
		survived=1
		grep -E '^storm|VIOLATION|discarded' "$work/out" | cut -c1-300 || true
	fi
	as=$(sed -n "s/^  VIOLATION $by: //p" "$work/out" | head -n 1 | cut -c1-100)
	row "$name" "$verdict" "$by" "$episodes" $((SECONDS - began)) "$as"
done
exit $survived
