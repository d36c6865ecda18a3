#!/bin/sh
# The whole tree, tests included, compiles without a warning at -Wall -Wextra -Wconversion, at -O2 and -O0.
set -eu
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
. tests/source.sh
source_tree "$work/source"
for flags in --enable-werror "--enable-werror --enable-debug"; do
    mkdir "$work/build"
    # shellcheck disable=SC2086
    (cd "$work/build" && "$source/configure" -q $flags >/dev/null && make -s -j "$(nproc)" all check TESTS=)
    rm -rf "$work/build"
done
