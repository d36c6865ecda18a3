#!/bin/sh
# tests/unit/test_cuda_sass.sh -- the built CUDA device's machine code: every flash attention kernel multiplies on the tensor cores, for
# each GPU that the plugin is built for, and none of the attention kernels keeps registers in memory.
# DDP_BUILDDIR: the build tree. CUOBJDUMP: the tool, where it is not in PATH; with nvdisasm beside it. A skip where something lacks.
plugin=${DDP_BUILDDIR:-.}/.libs/device_cuda.so
tool=${CUOBJDUMP:-cuobjdump}
skip()
{
    echo "1..0 # SKIP $1"
    exit 0
}
command -v "$tool" >/dev/null 2>&1 || skip "no cuobjdump, which the CUDA toolkit or pip's nvidia-cuda-cuobjdump has"
[ -f "$plugin" ] || skip "$plugin is not built"
work=$(mktemp -d) || exit 99
trap 'rm -rf "$work"' EXIT

# check ARCHITECTURE CASE: six kernels, two sizes of forward, keys' gradient and queries' gradient, each with HMMA or HGMMA
check()
{
    if "$tool" --dump-sass -arch "$1" "$plugin" >"$work/sass" 2>"$work/error" && awk '
        /Function :/ { name = $NF; if (name ~ /flash_forward|flash_gradient/) products[name] += 0; next }
        name in products && /HG?MMA/ { products[name]++ }
        END {
            for (name in products) {
                kernels++
                printf "# %s: %d tensor core instructions\n", name, products[name]
                if (products[name] == 0) missing++
            }
            exit kernels != 6 || missing > 0
        }' "$work/sass"; then
        echo "ok $2 - flash attention on tensor cores, $1"
    else
        sed 's/^/# /' "$work/error"
        echo "not ok $2 - flash attention on tensor cores, $1"
        failed=1
    fi
    if awk '
        /Function :/ { name = $NF ~ /flash_|plain_(forward|gradient|delta)/ ? $NF : ""; next }
        name != "" && /[ ](STL|LDL)[. ]/ { spills[name]++ }
        END { for (name in spills) { bad = 1; printf "# %s: %d\n", name, spills[name] } exit bad }' "$work/sass"; then
        echo "ok $3 - no registers kept in memory, $1"
    else
        echo "not ok $3 - no registers kept in memory, $1"
        failed=1
    fi
}

failed=0
echo 1..4
check sm_80 1 2
check sm_90a 3 4
exit $failed
