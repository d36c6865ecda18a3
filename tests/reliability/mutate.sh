#!/bin/sh
# tests/reliability/mutate.sh [NAME...]: every mutation of the code in mutations/ must turn its row of the table red.
# The tree is copied and built once in a temporary folder; each mutation is applied there, built, tried and taken back.
# A build takes a minute or two, a mutation about ten seconds.
set -eu
top=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM HUP
mkdir "$work/source" "$work/build"
[ -x "$top/configure" ] || (cd "$top" && autoreconf -fi >/dev/null 2>&1)
# without what a configured tree has: the copy is built from a folder of its own
tar -C "$top" --exclude=.git --exclude='./build-address*' --exclude=./build-thread --exclude='*.o' --exclude='*.lo' --exclude='*.la' --exclude='*.a' \
    --exclude=.libs --exclude=.deps --exclude=.dirstamp --exclude=./config.status --exclude=./Makefile --exclude=./libtool \
    -cf - . | tar -C "$work/source" -xf -
(cd "$work/build" && "$work/source/configure" -q >/dev/null && make -s -j "$(nproc)" all >"$work/make.log" 2>&1) ||
    { tail -n 30 "$work/make.log"; exit 1; }

field() { sed -n "s/^# $1: //p" "$2"; }
kept=0
for script in "$top"/tests/reliability/mutations/*.sed; do
    name=$(basename "$script" .sed)
    [ $# = 0 ] || case " $* " in *" $name "*) ;; *) continue ;; esac
    target=$work/source/$(field file "$script")
    cp "$target" "$work/original"
    sed -i -f "$script" "$target"
    if cmp -s "$target" "$work/original"; then
        echo "STALE    $name: it changes nothing in $(field file "$script")"
        kept=1
        continue
    fi
    if ! make -s -C "$work/build" all >"$work/make.log" 2>&1; then
        echo "BROKEN   $name: it does not compile"
        tail -n 5 "$work/make.log"
        kept=1
    else
        DDP_SRCDIR=$work/source DDP_BUILDDIR=$work/build "${PYTHON:-python3}" "$top/tests/reliability/run.py" --seed 0 \
            --trials "$(field trials "$script")" --only "$(field row "$script")" >"$work/run.log" 2>&1 || true
        if grep -q '^FAILED: ' "$work/run.log"; then
            echo "red      $name: $(sed -n '/^FAILED: /{n;p;q;}' "$work/run.log" | cut -c 1-150)"
        else
            echo "UNSEEN   $name: $(field row "$script")"
            tail -n 3 "$work/run.log"
            kept=1
        fi
    fi
    cp "$work/original" "$target"
done
[ "$kept" = 0 ] || exit 1
