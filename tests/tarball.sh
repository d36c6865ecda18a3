#!/bin/sh
# make dist, then the tarball alone: unpacks, configures, builds and passes the tests.
set -eu
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work" # one test runs the program as another user
. tests/source.sh
source_tree "$work/source"
mkdir "$work/build"
(cd "$work/build" && "$source/configure" -q >/dev/null && make -s dist >/dev/null && cp ddpengine-*.tar.gz "$work")
cd "$work"
tar xzf ddpengine-*.tar.gz
rm -rf build source ddpengine-*.tar.gz
cd ddpengine-*
./configure -q >/dev/null
make -s -j "$(nproc)"
make -j "$(nproc)" check >check.log 2>&1 || {
    grep -E '^(FAIL|ERROR):' check.log
    grep -rhE -A 15 '^not ok' --include='test_*.log' . | head -n 60
    exit 1
}
grep -E '^# (TOTAL|PASS|SKIP|FAIL|ERROR)' check.log
