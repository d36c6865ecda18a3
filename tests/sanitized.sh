#!/bin/sh
# tests/sanitized.sh address,undefined | thread: builds once more in a folder of its own and runs the tests there.
# address: those of make check, with the cases that it leaves to check-long for a second or two (harness.seldom), but for the curves
# and the classes of CPU, which prove numbers; and what the long ones have of the CUDA device, but for attention and whole models,
# whose memory is that of the other kernels and which would take ten minutes.
# thread: the unit tests of what has threads of its own: a library that is not built for it, such as OpenMP's, would drown the rest,
# and the CPU device has no other threads; kernels of the CUDA device run on fibers of one thread. Rooms without threads are left out.
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
[ -f config.status ] || CONFIG_SHELL=/bin/sh /bin/sh "$source/configure" -q --enable-werror --enable-sanitizers="$kind" >/dev/null
rc=0
if [ "$kind" = thread ]; then
    export TSAN_OPTIONS="halt_on_error=1 suppressions=$top/tests/tsan.supp"
else
    export DDP_SELDOM=1
    # the leak checker itself crashes now and then where it reads the thread-local storage of a library opened by dlopen
    # Without symbols: each process would read the debug information of all its libraries to name the leaks that lsan.supp knows,
    # two thirds of what a short one takes. What fails is run again with them (below).
    export ASAN_OPTIONS="detect_leaks=1:strict_string_checks=1:symbolize=0" \
        LSAN_OPTIONS="use_tls=0:suppressions=$top/tests/lsan.supp:print_suppressions=0" UBSAN_OPTIONS="print_stacktrace=1"
fi
make -s Makefile >/dev/null # what it prints where it is made again must not come among the names
# The names in a list of the makefile's, without those that match.
list() { printf 'include Makefile\nshow: ; @echo $(filter-out %s,$(%s))\n' "$2" "$1" | make -s -f - show; }
cuda=tests/unit/cuda/test_cuda
if [ "$kind" = thread ]; then
    kernels="${cuda}_attention ${cuda}_models ${cuda}_image ${cuda}_kernels"
    alone="tests/unit/checkpoint/test_safetensors tests/unit/config/% tests/unit/conform/% tests/unit/dataset/% tests/unit/graph/% tests/unit/hook/% tests/unit/backend/test_reduce"
    programs=$(list check_PROGRAMS "tests/unit/device/% tests/parity/% $alone")
    tests="$programs $(list LONG_CHECKS "$kernels")"
else
    # the long ones are built with the others, and run first: no processor waits for the last of them
    long=$(list LONG_CHECKS "${cuda}_attention ${cuda}_models")
    programs="$(list check_PROGRAMS "") $long"
    tests="$long $(list TESTS "tests/parity/%.py tests/classes.sh")"
fi
make -j "$(nproc)" check TESTS= check_PROGRAMS="$programs" >"$log" 2>&1 || true
make -j "$((2 * $(nproc)))" check TESTS="$tests" check_PROGRAMS="$programs" >"$log" 2>&1 || rc=$? # most of them wait most of the time
if ! grep -q '^# TOTAL' "$log"; then
    tail -n 40 "$log"
    exit 1
fi
failures() { grep -E -B2 -A12 '^not ok|^# DDP_TEST_SEED|ERROR: |WARNING: ThreadSanitizer' test-suite.log | head -n 120 || true; }
if [ "$rc" != 0 ]; then
    failures
    if [ "$kind" != thread ]; then
        echo "# once more, with the names of functions:"
        ASAN_OPTIONS=${ASAN_OPTIONS%0}1 make recheck TESTS="$tests" >/dev/null 2>&1 || failures
    fi
fi
awk -f "$top/tests/count.awk" "$log"
exit "$rc"
