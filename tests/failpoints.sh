#!/bin/sh
# tests/failpoints.sh [ARGUMENTS of tests/reliability/failpoints.py]: builds the program and its plugins once more, with
# --enable-failpoints, in build-failpoints/, and has the calls of a small run fail in turn.
set -eu
cd "$(dirname "$0")/.."
build=$(pwd)/build-failpoints
mkdir -p "$build"
. tests/source.sh
source_tree "$build/source"
src=$(pwd)
# a copy of a tree that was built in place is built so, too: a cache of the compiler then has its objects
[ "$source" = "$src" ] || build=$source
cd "$build"
[ -f config.status ] || CONFIG_SHELL=/bin/sh /bin/sh "$source/configure" -q --enable-werror --enable-failpoints --without-cuda >/dev/null
make -s -j "$(nproc)" >make.log 2>&1 || { tail -n 40 make.log; exit 1; }
DDP_SRCDIR=$src DDP_BUILDDIR=$build exec python3 "$src/tests/reliability/failpoints.py" "$@"
