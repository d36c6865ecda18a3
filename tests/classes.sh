#!/bin/sh
# tests/classes.sh: the tests of the CPU device and of bf16 once more, as on a CPU of each class below this one's: DDPENGINE_CPU
# limits our kernels and oneDNN together. Those with convolutions also as built without oneDNN. TAP: a case of a test is one
# here, with the class before its name. The others of those programs have run natively by themselves. Under make check-long
# (DDP_LONG=1) all of them, else the quick ones.
set -u
src=${DDP_SRCDIR:-.} build=${DDP_BUILDDIR:-.}
export CMOCKA_MESSAGE_OUTPUT=TAP
if [ "${DDP_LONG:-}" = 1 ]; then
    programs="tests/unit/device/test_device tests/parity/test_curve.py"
    unset DDP_LONG # of the programs' own cases: the usual ones
    export DDP_SELDOM=1
else
    programs="tests/parity/test_ops tests/parity/test_models tests/integration/test_train.py:test_precision_bf16
        tests/integration/preflight/test_preflight.py:test_slow_bf16"
fi
count=0 failed=0
out=$(mktemp) || exit 99
trap 'rm -f "$out"' EXIT

run() { # run PROGRAM[:CASE], in $out
    case $1 in
    *.py:*) "${PYTHON:-python3}" "$src/${1%%:*}" "${1#*:}" ;;
    *.py) "${PYTHON:-python3}" "$src/$1" ;;
    *) "$build/$1" ;;
    esac >"$out" 2>&1 </dev/null
}

retell() { # retell CLASS PROGRAM STATUS: the cases of $out; a program that ends badly without one that is red is one more
    before=$failed
    while IFS= read -r line; do
        case $line in
        "not ok "*" # SKIP"* | "ok "* | "not ok "*) ;;
        *) echo "# $line"; continue ;;
        esac
        count=$((count + 1))
        word=ok
        case $line in "not ok "*" # SKIP"*) ;; "not ok "*) word="not ok" failed=$((failed + 1)) ;; esac # cmocka's skips: tests/tap.sh
        echo "$word $count $1 $(basename "${2%%:*}") ${line#*ok * }"
    done <"$out"
    if [ "$3" != 0 ] && [ "$failed" = "$before" ]; then
        count=$((count + 1)) failed=$((failed + 1))
        echo "not ok $count $1 $2 ended with status $3"
    fi
}

for class in portable avx2 avx512; do
    DDPENGINE_CPU=$class
    export DDPENGINE_CPU
    if ! "$build/ddpengine" plugins >"$out" 2>&1; then
        count=$((count + 1))
        echo "ok $count $class # SKIP this CPU is below it: $(tail -n 1 "$out")"
        continue
    fi
    for program in $programs; do
        [ -e "$build/$program" ] || [ -e "$src/${program%%:*}" ] || continue # not built: it is not among the native tests either
        run "$program"
        retell "$class" "$program" $?
    done
done
unset DDPENGINE_CPU
if [ -e "$build/.libs/device_cpu_alone.so" ]; then
    DDP_DEVICE_CPU=.libs/device_cpu_alone.so
    export DDP_DEVICE_CPU
    for program in tests/unit/device/test_device_image tests/parity/test_ops tests/parity/test_models; do
        [ -e "$build/$program" ] || continue
        run "$program"
        retell "without oneDNN" "$program" $?
    done
fi
echo "1..$count"
[ "$failed" = 0 ]
