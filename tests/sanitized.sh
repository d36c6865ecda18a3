#!/bin/sh
# tests/sanitized.sh address,undefined | thread: builds once more in a folder of its own and runs the tests there (with
# `thread` the unit tests of what has threads of its own: a library that is not built for it, such as OpenMP's, would drown the
# rest, and the CPU device has no other threads; kernels of the CUDA device run on fibers of one thread).
set -eu
cd "$(dirname "$0")/.."
kind=$1
top=$(pwd)
build=$top/build-$(echo "$kind" | tr ',' '-')
log=$build/check.log
mkdir -p "$build"
. tests/source.sh
source_tree "$build/source"
cd "$build"
[ -f config.status ] || "$source/configure" -q --enable-werror --enable-sanitizers="$kind" >/dev/null
rc=0
if [ "$kind" = thread ]; then
    export TSAN_OPTIONS="halt_on_error=1 suppressions=$top/tests/tsan.supp"
    set -- 'TESTS=$(filter-out tests/unit/device/test_device% tests/unit/cuda/test_cuda_attention tests/unit/cuda/test_cuda_image tests/unit/cuda/test_cuda_kernels tests/unit/cuda/test_cuda_models tests/parity/% tests/gpu/%,$(check_PROGRAMS))'
else
    # the leak checker itself crashes now and then where it reads the thread-local storage of a library opened by dlopen
    export DDPENGINE_KILL_TRIES=4 ASAN_OPTIONS="detect_leaks=1:strict_string_checks=1" \
        LSAN_OPTIONS="use_tls=0:suppressions=$top/tests/lsan.supp:print_suppressions=0" UBSAN_OPTIONS="print_stacktrace=1"
    set --
fi
make -j "$(nproc)" "$@" check >"$log" 2>&1 || rc=$?
if ! grep -q '^# TOTAL' "$log"; then
    tail -n 40 "$log"
    exit 1
fi
[ "$rc" = 0 ] || grep -E -B2 -A12 '^not ok|ERROR: |WARNING: ThreadSanitizer' test-suite.log | head -n 120 || true
awk -f "$top/tests/count.awk" "$log"
exit "$rc"
