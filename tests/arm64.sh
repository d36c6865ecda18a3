#!/usr/bin/env bash
# ARM64 on another machine: builds program, plugins and unit tests by Debian's cross compiler against Debian's libraries of ARM64, and
# runs them under qemu. Two ranks train over shm and over gloo-tcp: both get the same bits, and the losses of this machine's own
# ddpengine. Needs no root, no chroot and no binfmt, and installs nothing: libraries are unpacked in a folder.
#   tests/arm64.sh [FOLDER]     FOLDER keeps libraries and build for the next time; DDPENGINE=FILE: this machine's ddpengine, where
#                               it is not ./ddpengine
# Needs (on Debian): apt-get install g++-aarch64-linux-gnu qemu-user-static, and what the build needs. The tests are those of what
# may differ from one processor to another: kernels, numbers, shared memory, connections, files, plugins.
set -u -o pipefail
cd "$(dirname "$0")/.." || exit 1
triple=aarch64-linux-gnu
top=$(pwd) passed=0 failed=0 skipped=0

# "%" stands for any name: patterns of make.
rooms="tests/unit/backend/% tests/unit/base/% tests/unit/device/% tests/unit/graph/% tests/unit/hook/% tests/unit/plugin/% tests/parity/%"
long="tests/unit/device/% tests/parity/test_models tests/unit/backend/test_shm"
# What qemu cannot do, and why: programs of these rooms, and cases of programs. Each counts as skipped.
cannot="
tests/unit/backend/test_mpi             starts ranks by mpirun, which would have to be ARM64's
tests/unit/backend/test_nccl            needs NVIDIA's headers
tests/unit/backend/test_nccl_failure    needs NVIDIA's headers
tests/unit/device/test_device           takes minutes; tests/parity/test_ops has the same ops
tests/unit/device/test_device_sequence  takes minutes; tests/parity/test_ops has the same ops, test_models the models
thread_that_cannot_start                limits of memory and of processes are the emulator's own
checks_owners                           starts itself once more, which takes binfmt_misc
runs_from_the_build_tree                starts a copy of itself, which takes binfmt_misc
"
LIMIT=600 # seconds for one test; the longest takes 46 of a processor

ok() {
    passed=$((passed + 1))
    echo "ok       $*"
}
wrong() {
    failed=$((failed + 1))
    echo "FAILED   $*"
}
finish() {
    echo "$passed passed, $failed failed, $skipped skipped"
    [ "$failed" = 0 ]
    exit
}
stage() { # stage NAME COMMAND...: what the rest cannot do without
    local name=$1 started=$SECONDS
    shift
    if "$@" >"$work/stage.log" 2>&1; then
        ok "$name ($((SECONDS - started)) s)"
    else
        wrong "$name ($((SECONDS - started)) s)"
        tail -n 40 "$work/stage.log"
        finish
    fi
}

for tool in $triple-g++:g++-$triple qemu-aarch64-static:qemu-user-static apt-get:apt dpkg-deb:dpkg; do
    command -v "${tool%%:*}" >/dev/null || { echo "SKIP: no ${tool%%:*}; apt-get install ${tool#*:}"; exit 77; }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
folder=${1:-$work/arm64}
mkdir -p "$folder" && folder=$(cd "$folder" && pwd) || exit 1
root=$folder/root build=$folder/build
export QEMU_LD_PREFIX=$root QEMU_CPU=max

# The libraries that ./quickstart installs, of ARM64, from the same sources of apt, whose lists and state are not touched.
libraries() {
    local names wanted apt=$work/apt sources=/etc/apt/sources.list.d/debian.sources
    names=$(sed -nE 's/^[^|]+\|((lib[^|]*|zlib1g)-dev)\|.*/\1/p' quickstart) # a table
    [ -n "$names" ] || { echo "quickstart names no libraries"; return 1; }
    [ "$(cat "$root/.complete" 2>/dev/null)" != "$names" ] || return 0
    [ -f "$sources" ] || sources=/etc/apt/sources.list
    rm -rf "$root"
    mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" "$apt/debs" "$root/usr/lib"
    : >"$apt/status"
    cat >"$apt/conf" <<END
Dir::State "$apt";
Dir::State::status "$apt/status";
Dir::Cache "$apt/cache";
Dir::Etc::SourceList "$sources";
Dir::Etc::SourceParts "/dev/null";
APT::Architecture "arm64";
APT::Architectures { "arm64"; };
APT::Sandbox::User "$(id -un)";
Acquire::Languages "none";
END
    export APT_CONFIG=$apt/conf
    apt-get -q update || return 1
    # shellcheck disable=SC2086
    apt-get -qq --print-uris --no-install-recommends install $names >"$apt/uris" || return 1
    # all that they need is libraries, but for programs that nothing here starts
    wanted=$(sed -nE 's/^[^ ]* (lib[^_]*|zlib1g[^_]*)_.*/\1/p' "$apt/uris" | grep -vE '^lib(perl|asan|tsan|lsan|hwasan|ubsan|binutils|cc1|isl|js)')
    # shellcheck disable=SC2086
    (cd "$apt/debs" && apt-get -q download $wanted) || return 1
    unset APT_CONFIG
    unpack "$apt/debs" && echo "$names" >"$root/.complete"
}
unpack() { # unpack FOLDER: its packages into $root; links to /lib/x lead into $root then
    local file link
    ln -s usr/lib "$root/lib"
    for file in "$1"/*.deb; do
        dpkg-deb --fsys-tarfile "$file" | tar -x -C "$root" --keep-directory-symlink --no-same-owner --exclude='./usr/share/doc' || return 1
    done
    find "$root" -type l -lname '/*' | while IFS= read -r link; do
        ln -srfn "$root$(readlink "$link")" "$link"
    done
}

configured() {
    mkdir -p "$build" && cd "$build" || return 1
    [ ! -f config.status ] || return 0
    # -O2 also for what is -O1 by default: some warnings come with it alone
    # shellcheck disable=SC2154
    CONFIG_SHELL=/bin/sh /bin/sh "$source/configure" -q --host="$triple" CC="$triple-gcc --sysroot=$root" CXX="$triple-g++ --sysroot=$root" \
        --enable-werror --without-cuda CFLAGS="-O2 -g1" C_INCLUDE_PATH="$root/usr/include"
}
# The unit tests of the rooms, but for what is left out; the long ones first, so that no processor waits for the last of them.
chosen() {
    # shellcheck disable=SC2016
    printf 'include Makefile\nall = $(filter-out %s,$(filter %s,$(check_PROGRAMS)))\nshow: ; @echo $(filter %s,$(all)) $(filter-out %s,$(all))\n' \
        "$(awk '/\// {printf "%s ", $1}' <<<"$cannot")" "$rooms" "$long" "$long" | make -s -C "$build" -f - show
}
built() {
    cd "$build" || return 1
    make -s -j "$(nproc)" check TESTS= check_PROGRAMS="$programs" check_LTLIBRARIES= check_SCRIPTS= &&
        [ "$("$triple-readelf" -h ddpengine .libs/device_cpu.so .libs/backend_gloo_tcp.so | grep -c 'Machine: *AArch64')" = 3 ]
}

# How make runs a test: under qemu, and red cases that it cannot do become skipped ones. The exit status is that of the others.
emulator() {
    awk 'NF && !/\// {name = $1; $1 = ""; printf "s/^not ok ([0-9]+) - %s$/ok \\1 - %s # SKIP%s/\n", name, name, $0}' <<<"$cannot" >"$work/cannot.sed"
    cat >"$work/emulator" <<'END'
folder=$(mktemp -d) || exit 99
trap 'rm -rf "$folder"' EXIT
timeout -k 10 "$LIMIT" qemu-aarch64-static "$@" >"$folder/told" 2>&1
rc=$?
sed -E -f "$CANNOT" "$folder/told" >"$folder/right"
cat "$folder/right"
if [ "$rc" -lt 124 ] && ! cmp -s "$folder/told" "$folder/right" && ! grep -q '^not ok' "$folder/right"; then rc=0; fi
[ "$rc" != 124 ] || echo "Bail out! not done after $LIMIT s"
exit "$rc"
END
    export LIMIT CANNOT=$work/cannot.sed
}
unit_tests() {
    local started=$SECONDS p f s
    emulator
    cd "$build" || return 1
    make -j "$(nproc)" check TESTS="$programs" check_PROGRAMS= check_LTLIBRARIES= check_SCRIPTS= \
        LOG_COMPILER="sh $top/tests/tap.sh sh $work/emulator" >"$work/check.log" 2>&1 ||
        grep -E -B2 -A12 '^not ok|^ERROR|^# DDP_TEST_SEED' test-suite.log | head -n 120
    if grep -q '^# TOTAL' "$work/check.log"; then
        read -r p _ f _ s _ < <(awk -f "$top/tests/count.awk" "$work/check.log")
        passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
        # shellcheck disable=SC2046,SC2086
        grep -hE '^ok .* # SKIP' $(printf '%s.log ' $programs)
        echo "unit tests: $p passed, $f failed, $s skipped ($((SECONDS - started)) s)"
    else
        tail -n 40 "$work/check.log"
        wrong "unit tests: they did not start"
    fi
    cd "$top" || exit 1
}

# train NAME BACKEND COMMAND...: two ranks, in $work/NAME; its losses come into $work/NAME/losses
train() {
    local name=$1 backend=$2
    shift 2
    mkdir -p "$work/$name"
    cat >"$work/$name/run.ini" <<END
[group]
backend = $backend
[train]
epochs = 2
global_batch = 64
[model]
plugin = mlp
[model.mlp]
input = input
hidden = 96, 48
classes = 10
[data]
plugin = synthetic
[data.synthetic]
shape = 64
classes = 10
samples = 2048
[optimizer]
lr = 0.1
[output]
dir = out
log_every = 1
[checkpoint]
dir = ckpt
END
    (cd "$work/$name" && timeout -k 10 "$LIMIT" "$@" -c run.ini --nproc 2 >log 2>&1) || { tail -n 20 "$work/$name/log"; return 1; }
    sed -nE 's/^\{"event": "step".* "loss": ([^,]+),.*/\1/p' "$work/$name/out/metrics.jsonl" >"$work/$name/losses"
    [ "$(wc -l <"$work/$name/losses")" = 64 ]
}
# The greatest relative difference of the losses of two runs, which must not be above 1e-6: products are added up in another order.
close() {
    paste "$work/$1/losses" "$work/$2/losses" | awk '
        { d = $1 > $2 ? $1 - $2 : $2 - $1; d /= $1; if (d > worst) worst = d; same += $1 == $2 }
        END { printf "%d of %d losses have the same digits, the greatest relative difference is %.1e", same, NR, worst; exit !(NR == 64 && worst <= 1e-6) }'
}
same_bits() { cmp "$work/$1"/ckpt/*/model.safetensors "$work/$2"/ckpt/*/model.safetensors; }
check() { # check WHAT COMMAND...
    local what=$1 said started=$SECONDS
    shift
    if said=$("$@" 2>&1); then ok "$what${said:+: $said} ($((SECONDS - started)) s)"; else wrong "$what: $said"; fi
}

stage "libraries of ARM64" libraries
. tests/source.sh
source_tree "$folder/source"
stage "configure" configured
make -s -C "$build" Makefile >/dev/null 2>&1 # what it prints where it is made again must not come among the names
programs=$(chosen)
stage "build: program, plugins, $(echo "$programs" | wc -w) programs of unit tests" built
unit_tests
while read -r name reason; do
    skipped=$((skipped + 1))
    echo "skipped  $name: $reason"
done < <(grep / <<<"$cannot")
check "two ranks train over shm" train shm shm qemu-aarch64-static "$build/ddpengine"
check "two ranks train over gloo-tcp" train gloo gloo-tcp qemu-aarch64-static "$build/ddpengine"
check "both have the same bits" same_bits shm gloo
check "the device is called by what it has, NEON" grep -o "over shm on .*, NEON" "$work/shm/log"
own=$(realpath "${DDPENGINE:-./ddpengine}")
if [ -x "$own" ]; then
    check "two ranks train on this machine" train here shm "$own"
    check "losses against those of $(uname -m)" close here shm
else
    skipped=$((skipped + 2))
    echo "skipped  losses against those of $(uname -m): there is no $own; make builds it"
fi
finish
