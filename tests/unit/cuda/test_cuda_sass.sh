#!/bin/sh
# tests/unit/cuda/test_cuda_sass.sh -- the built CUDA device's machine code. For each GPU that the plugin is built for:
# every flash attention kernel multiplies on the tensor cores, none of the attention kernels keeps registers in memory,
# and kernels that memory bounds have as many loads on their way together as they were written for.
# DDP_BUILDDIR: the build tree. CUOBJDUMP: the tool, where it is not in PATH, with nvdisasm beside it. Without them: a
# skip.
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

# check ARCHITECTURE CASE CASE CASE: six kernels, two sizes of forward, keys' gradient and queries' gradient, each with
# HMMA or HGMMA
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
    if loads "$work/sass"; then
        echo "ok $4 - loads on their way together, $1"
    else
        echo "not ok $4 - loads on their way together, $1"
        failed=1
    fi
}

# loads FILE: of each kernel below, by a piece of its mangled name, the most loads of 16 bytes from global memory that
# follow each other with no instruction between them that touches what one of them brings. ptxas undoes that where it
# lacks registers (__launch_bounds__) or where a branch stands between the loads.
loads()
{
    awk '
        BEGIN {
            least["squares_kernel"] = least["finite_kernel"] = 4
            least["columns_kernelILi8EfE"] = 8; least["columns_kernelILi8EtE"] = 4
            least["position_grad_kernelILb1EfE"] = 8; least["position_grad_kernelILb1EtE"] = 4
            least["few_kernelILb1EfE"] = 8; least["few_kernelILb1EtE"] = 4
            least["moments_kernelI11cu_wide_f32E"] = least["moments_kernelI12cu_wide_bf16E"] = 8
            least["entropy_kernelILb1EttE"] = least["entropy_kernelILb0EttE"] = 4
            least["norm_grad_kernelILi3ELb1EtfE"] = 15; least["norm_grad_kernelILi3ELb1EffE"] = 18
            least["update_kernelILi2EE"] = 4
        }
        /Function :/ {
            name = ""
            for (piece in least) if (index($NF, piece)) name = piece
            if (name != "" && !(name in most)) most[name] = 0
            under = 0; split("", coming)
            next
        }
        name != "" && /^[ \t]*\/\*[0-9a-f]+\*\/.*;/ {
            text = $0; sub(/;.*/, "", text); sub(/^[ \t]*\/\*[0-9a-f]+\*\//, "", text)
            load = text ~ /[ \t]LDG\.[^ ]*128[^ ]*[ ]/; target = ""
            while (match(text, /[^A-Z]R[0-9]+/)) {
                register = substr(text, RSTART + 2, RLENGTH - 2) + 0
                text = substr(text, RSTART + RLENGTH)
                if (load && target == "") target = register
                if (register in coming) { under = 0; split("", coming) }
            }
            if (!load) next
            for (k = 0; k < 4; k++) coming[target + k] = 1
            if (++under > most[name]) most[name] = under
        }
        END {
            for (piece in least) {
                printf "# %s: %d together, at least %d\n", piece, most[piece], least[piece]
                if (most[piece] < least[piece]) bad = 1
            }
            exit bad
        }' "$1"
}

failed=0
echo 1..6
check sm_80 1 2 3
check sm_90 4 5 6
exit $failed
