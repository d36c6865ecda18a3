#!/bin/sh
# The whole tree, tests included, compiles without a warning at -Wall -Wextra -Wconversion, at -O2 and -O0.
set -eu
cd "$(dirname "$0")/.."
top=$(pwd)
for flags in --enable-werror "--enable-werror --enable-debug"; do
    build=$(mktemp -d)
    trap 'rm -rf "$build"' EXIT
    # shellcheck disable=SC2086
    (cd "$build" && "$top/configure" -q $flags >/dev/null && make -s -j "$(nproc)" all check TESTS=)
    rm -rf "$build"
done
