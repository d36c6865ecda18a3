#!/bin/sh
# tests/fuzz/run.sh check CC: can it build the targets? run CORPUS SECONDS [NAME ..]: each target in fuzz-build/bin for
# so long, one after the other, from the kept inputs and those of earlier runs; a line for each. Exits 1 where one found
# something: the input is in fuzz-build/found/NAME, how it ended in fuzz-build/found/NAME.log.
set -u
if [ "$1" = check ]; then
    if [ -z "$2" ] || ! echo 'int LLVMFuzzerTestOneInput(const unsigned char *d, unsigned long n) { return d && n > 9; }' |
        "$2" -fsanitize=fuzzer,address,undefined -x c -o /dev/null - 2>/dev/null; then
        echo "make fuzz needs clang with libFuzzer: apt-get install clang, then configure again" >&2
        exit 1
    fi
    exit 0
fi
corpus=$2 seconds=$3
shift 3
[ $# -gt 0 ] || set -- $(cd fuzz-build/bin && ls | grep -v '^coverage$')
export ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1
bad=0
printf '%-14s %12s %10s %10s\n' target executions coverage findings
for name; do
    new=fuzz-build/corpus/$name found=fuzz-build/found/$name log=fuzz-build/found/$name.log
    mkdir -p "$new" "$found"
    : >fuzz-build/found/began
    fuzz-build/bin/"$name" -max_total_time="$seconds" -timeout=25 -rss_limit_mb=2048 -max_len=16384 -print_final_stats=1 \
        -artifact_prefix="$found/" "$new" "$corpus/$name" >"$log" 2>&1 || true
    executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    coverage=$(sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$log" | tail -n 1)
    findings=$(find "$found" -type f -newer fuzz-build/found/began | wc -l)
    printf '%-14s %12s %10s %10s\n' "$name" "${executions:-0}" "${coverage:-0}" "$findings"
    if [ "$findings" -gt 0 ] || [ -z "$executions" ]; then
        bad=1
        echo "  see $log and $found/"
    fi
done
exit $bad
