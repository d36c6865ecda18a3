#!/bin/sh
# Whether `./quickstart check` is green every time, beside two endless loops for each processor. Prints a line for each run, and
# how many were green. In a bare Debian: tests/distro.sh.
#   tests/repeat.sh TIMES
set -eu
cd "$(dirname "$0")/.."
times=${1:?how often} green=0 logs=${TMPDIR:-/tmp} loops=""

for _ in $(seq $((2 * $(nproc)))); do
    (while :; do :; done) &
    loops="$loops $!"
done
# shellcheck disable=SC2086
trap 'kill $loops' EXIT
for n in $(seq "$times"); do
    from=$(date +%s) rc=0
    ./quickstart check >"$logs/repeat-$n.log" 2>&1 || rc=$?
    [ "$rc" != 0 ] || green=$((green + 1))
    echo "$n: exit $rc after $(($(date +%s) - from)) s: $(tail -n 1 "$logs/repeat-$n.log")"
done
echo "$green of $times green"
[ "$green" = "$times" ]
