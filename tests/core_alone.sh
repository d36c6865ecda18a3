#!/bin/sh
# A fresh Debian with the packages of the core and nothing else: what a library is missing for is left out in a line of configure, all
# else builds without a warning, and the program says of what was left out how to get it. As root, with mmdebstrap.
#   tests/core_alone.sh [RELEASE]     bookworm where it is left out
set -eu
cd "$(dirname "$0")/.."
packages=$(sed -n 's/^core|\([^|]*\)|.*/\1/p' quickstart | paste -s -d ,)
[ -n "$packages" ] || { echo "core_alone.sh: quickstart names no package of the core"; exit 1; }
# shellcheck disable=SC2016
EXTRA=$packages${CCACHE_DIR:+,ccache} exec tests/distro.sh "${1:-bookworm}" root '
set -e
fails() { # CODE WORDS COMMAND...: ends with that code, and says so
    code=$1 words=$2
    shift 2
    "$@" >said 2>&1 && ended=0 || ended=$?
    cat said
    if [ "$ended" != "$code" ] || ! grep -qF -- "$words" said; then
        echo "wrong: $* ended with $ended, not $code and \"$words\""
        exit 1
    fi
}
autoreconf -fi >/dev/null 2>&1
./configure >summary
sed -n "/plugin  *on/,\$p" summary
for off in "backend gloo-tcp" "backend mpi" "dataset csv" "dataset idx" "export onnx" oneDNN "output tensorboard" import-yaml; do
    grep -Eq "^  $off +no +[A-Za-z]" summary || { echo "wrong: configure does not say why $off is off"; exit 1; }
done
make -s -j "$(nproc)" >log 2>&1 || { tail -n 40 log; exit 1; }
if grep -A 5 "warning:" log; then exit 1; fi
./ddpengine plugins
fails 3 "dataset \"idx\": no such plugin" ./ddpengine -c conf/quickstart.ini
printf "%s\n" "[train]" "max_steps = 20" "[group]" "backend = shm" "[model]" "plugin = lenet" "[data]" "plugin = synthetic" \
    "[data.synthetic]" "shape = 1, 28, 28" "classes = 10" >lenet.ini
./ddpengine -c lenet.ini --nproc 2
fails 2 "built without libyaml; install libyaml-dev" ./ddpengine import-yaml conf/quickstart.ini
./ddpengine import-yaml --help >/dev/null
./ddpengine new hook mine --dir mine >/dev/null
echo "the core alone: built, trains, and says what is missing"'
