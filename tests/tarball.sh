#!/bin/sh
# make dist, then the tarball alone: unpacks, configures, builds and passes the tests.
set -eu
cd "$(dirname "$0")/.."
top=$(pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/build"
(cd "$work/build" && "$top/configure" -q >/dev/null && make -s dist >/dev/null && cp ddpengine-*.tar.gz "$work")
cd "$work"
tar xzf ddpengine-*.tar.gz
rm -rf build ddpengine-*.tar.gz
cd ddpengine-*
./configure -q >/dev/null
make -s -j "$(nproc)"
make -j "$(nproc)" check >check.log 2>&1 || { tail -n 60 check.log; exit 1; }
grep -E '^# (TOTAL|PASS|SKIP|FAIL|ERROR)' check.log
