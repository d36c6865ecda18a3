#!/bin/sh
# make lint: layers, structure, words, format, cppcheck, clang-tidy. A tool that is not installed is named and counts as a failure, so that
# nothing passes by absence.
set -u
cd "$(dirname "$0")/../.."
bad=0
sources=$(find core conform infer plugins models samplers tests docs/examples -name '*.c' -o -name '*.h' -o -name '*.cc' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' | grep -v '^core/include\|\.pb-c\.[ch]$\|/builtin\.c$\|/embedded\.c$' | sort)

need() { command -v "$1" >/dev/null 2>&1 || { echo "lint: $1 is not installed (apt-get install $2)"; bad=1; return 1; }; }

python3 tests/lint/layers.py || bad=1
python3 tests/lint/structure.py || bad=1
python3 tests/lint/words.py || bad=1

if need clang-format clang-format; then
    # shellcheck disable=SC2086
    if clang-format --dry-run -Werror $sources; then echo "format: clean"; else bad=1; fi
fi

if need cppcheck cppcheck; then
    # shellcheck disable=SC2086
    if cppcheck -q --std=c11 --language=c --error-exitcode=1 --inline-suppr --enable=warning,performance,portability \
        --suppressions-list=tests/lint/cppcheck.txt -j 2 -Icore -I. -Icore/include -D_GNU_SOURCE -D__x86_64__ -DCLOCK_MONOTONIC=1 -DDDP_VERSION='"0"' \
        -DDDP_PLUGIN_DIR='"/"' $(echo "$sources" | grep '^\(core\|conform\|infer\)/.*\.c$\|^plugins/.*\.c$\|^models\|^samplers'); then
        echo "cppcheck: clean"
    else
        bad=1
    fi
fi

if need clang-tidy clang-tidy; then
    log=$(mktemp)
    without='^$'
    cuda=$(dirname "$(dirname "$(readlink -f "$(command -v nvcc || echo /usr/bin/nvcc)")")")/include
    if ! echo '#include <nccl.h>' | cc -isystem "$cuda" -fsyntax-only -x c - 2>/dev/null; then
        echo "clang-tidy: plugins/backend/nccl is left out: there is no nccl.h on this machine"
        without='^plugins/backend/nccl/'
    fi
    messages=$(mktemp -d) # what the build makes of ONNX's messages
    if ! protoc-c --proto_path=/usr/include/onnx --c_out="$messages" onnx.proto 2>/dev/null; then
        echo "clang-tidy: infer/export/onnx*.c are left out: there is no protoc-c, or no libonnx-dev, on this machine"
        without="$without\\|^infer/export/onnx"
    fi
    if ! protoc-c --proto_path=core/observe/tensorboard --c_out="$messages" event.proto 2>/dev/null || ! pkg-config --exists libisal; then
        echo "clang-tidy: core/observe/tensorboard/tensorboard.c is left out: there is no protoc-c, or no libisal-dev, on this machine"
        without="$without\\|^core/observe/tensorboard/tensorboard"
    fi
    mpi=$(pkg-config --cflags-only-I ompi-c 2>/dev/null || pkg-config --cflags-only-I mpich 2>/dev/null || true)
    export cuda mpi messages
    # A part of the paths that the analyser follows by default takes a quarter of the time, and finds the same. 10000 nodes would
    # take 40 % of the time of 30000, but find less: 243 blocks of code fewer of 29,172 are reached, in 99 functions (debug.Stats).
    # shellcheck disable=SC2086
    echo $(echo "$sources" | grep '^\(core\|conform\|infer\)/.*\.c$\|^plugins/.*\.c$\|^models\|^samplers' | grep -v "$without") | tr ' ' '\n' | xargs -P 2 -n 1 sh -c \
        'case $1 in core/base/*) ;; *) promises="-include tests/lint/analyzer.h" ;; esac # core/base defines them
        own=$(echo "$1" | sed -nE "s#^(plugins/[a-z]+)/([a-z0-9_]+)/.*#-Iplugins -I\1 -I\1/\2#p") # as its makefile has them
        clang-tidy -quiet "$1" -- $promises -std=gnu11 -D_GNU_SOURCE -DDDP_VERSION="\"0\"" -DDDP_PLUGIN_DIR="\"/\"" \
            -Icore -I. -Icore/include $own -isystem "$cuda" -isystem "$messages" $mpi -Xclang -analyzer-config -Xclang max-nodes=30000 2>/dev/null' tidy >"$log"
    if grep -E '(warning|error):' "$log"; then bad=1; else echo "clang-tidy: clean"; fi
    rm -rf "$log" "$messages"
fi
exit $bad
