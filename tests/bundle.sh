#!/bin/sh
# make check-bundle: what `make bundle` and `make wheel` have made, in a bare Debian 12 and a bare Debian 13 (chroots, which mmdebstrap makes
# from the sources of this machine's apt), without a network but loopback, as root. The bundle is moved to another folder and
# trains two ranks over shm and gloo-tcp with the bits of the build; what it takes from the system is named where it is missing. Then, in a
# fresh environment of the system's Python, the tests of the wheel's module.
#   tests/bundle.sh BUILD [ROOTS]     ROOTS: a folder that keeps the chroots as bookworm.tar, trixie.tar, made where they are not there
set -eu
build=$(cd "$1" && pwd)
here=$(cd "$(dirname "$0")/.." && pwd)
[ "$(id -u)" = 0 ] || { echo "SKIP: not root"; exit 77; }
for tool in mmdebstrap unshare ip; do
    command -v $tool >/dev/null || { echo "SKIP: no $tool; apt-get install mmdebstrap util-linux iproute2"; exit 77; }
done
work=$(mktemp -d)
trap 'rm -rf --one-file-system "$work"' EXIT
roots=${2-$work}
mkdir -p "$roots"
root=$work/root
die() { echo "FAILED: $*"; exit 1; }
tar=$(ls "$build"/bundle/ddpengine-*.tar.xz) || die "no bundle in $build/bundle: make wheel"
wheel=$(ls "$build"/bundle/ddpengine-*.whl) || die "no wheel in $build/bundle: make wheel"

fresh() { # RELEASE: an empty $root of that Debian
    if [ ! -f "$roots/$1.tar" ]; then
        # shellcheck disable=SC1091
        ours=$(. /etc/os-release && echo "$VERSION_CODENAME")
        for sources in /etc/apt/sources.list.d/debian.sources /etc/apt/sources.list; do
            [ ! -f "$sources" ] || break
        done
        sed "s/$ours/$1/g" "$sources" >"$work/${sources##*/}"
        mmdebstrap --quiet --variant=minbase "$1" "$work/new.tar" "$work/${sources##*/}"
        mv "$work/new.tar" "$roots/$1.tar"
    fi
    rm -rf --one-file-system "$root"
    mkdir -p "$root"
    tar xf "$roots/$1.tar" -C "$root" --exclude='./dev/*'
    mkdir -p "$root/proc" "$root/dev" "$root/w"
}
# inside COMMAND: in $root; all mounts and processes are gone when it ends. Without a network but loopback where $net is --net.
net=--net
inside() {
    # shellcheck disable=SC2016
    unshare --mount --pid --fork $net sh -euc '
        ip link set lo up
        mount -t proc proc "$0/proc"
        mount --bind /dev "$0/dev"
        mount -t tmpfs -o mode=1777 tmpfs "$0/dev/shm"
        exec chroot "$0" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 HOME=/root sh -euc "cd /w; $1"' "$root" "$1"
}
quiet() { inside "$1" >"$work/log" 2>&1 || { tail -n 30 "$work/log"; die "$1"; }; }
says() { # CODE TEXT COMMAND: how the command ends, and what it says
    code=0
    inside "$3" >"$work/log" 2>&1 || code=$?
    if [ "$code" != "$1" ] || ! grep -q "$2" "$work/log"; then
        cat "$work/log"
        die "exit code $code, not $1 with \"$2\": $3"
    fi
}
bits() { sed -n 's/.*"parameter_sha256": "\([0-9a-f]*\)".*/\1/p' "$1/summary.json"; }

cat >"$work/run.ini" <<'END'
[train]
max_steps = 40
batch_size = 16
threads = 1
seed = 3
[model]
plugin = lenet
[data]
plugin = synthetic
[data.synthetic]
samples = 1280
shape = 1, 28, 28
classes = 10
[optimizer]
lr = 0.05
[output]
dir = out
END
(cd "$work" && "$build/ddpengine" -c run.ini --nproc 2 --set group.backend=shm >log 2>&1) || { cat "$work/log"; die "the build itself"; }
wanted=$(bits "$work/out")
[ -n "$wanted" ] || die "the build's summary has no bits"

for release in bookworm trixie; do
    echo "-- a bare $release: the bundle, moved"
    fresh $release
    cp "$work/run.ini" "$root/w"
    mkdir "$root/opt/first"
    tar xJf "$tar" -C "$root/opt/first"
    mkdir "$root/srv/another place"
    mv "$root/opt/first"/ddpengine-* "$root/srv/another place/engine"
    engine="'/srv/another place/engine/ddpengine'"
    for backend in shm gloo-tcp; do
        quiet "$engine -c run.ini --nproc 2 --set group.backend=$backend"
        [ "$(bits "$root/w/out")" = "$wanted" ] || die "$backend on $release: other bits than the build has: $(bits "$root/w/out"), not $wanted"
    done
    quiet "cd /; $engine plugins | grep gloo-tcp"
    quiet "$engine -c run.ini --check"
    says 3 "Install the Debian package libarchive13" "$engine -c run.ini --set data.plugin=tar --set data.tar.files=x.tar"
    if [ -f "$root/srv/another place/engine/lib/ddpengine/backend_mpi.so" ]; then
        says 3 "Install the Debian package" "$engine -c run.ini --nproc 2 --set group.backend=mpi"
    fi
    for licence in ddpengine libgloo-dev libstdc++6 libssl3; do
        [ -s "$root/srv/another place/engine/licences/$licence" ] || die "no licence $licence"
    done
    rm "$root/srv/another place/engine/lib"/libgloo-*
    says 3 "backend_gloo_tcp.so needs the library libgloo.*Install the whole bundle again" "$engine -c run.ini --nproc 2 --set group.backend=gloo-tcp"

    echo "-- $release: the wheel"
    net=""
    quiet "apt-get -q update && apt-get -q -y -o Dpkg::Use-Pty=0 --no-install-recommends install python3-venv"
    net=--net
    cp "$wheel" "$here/conf/packaging/python/tests/test_module.py" "$root/w"
    quiet "python3 -m venv /venv"
    started=$(date +%s%N)
    quiet "/venv/bin/pip install -q --no-index ./*.whl
        /venv/bin/python -c 'import ddpengine; print(next(m for m in ddpengine.train(\"run.ini\") if m[\"event\"] == \"step\"))'"
    echo "from pip install to the first step: $((($(date +%s%N) - started) / 1000000)) ms, $(inside "/venv/bin/python --version")"
    quiet "/venv/bin/ddpengine -c run.ini --nproc 2"
    [ "$(bits "$root/w/out")" = "$wanted" ] || die "the wheel's program on $release: other bits than the build has"
    inside "/venv/bin/python test_module.py" 2>&1 || die "the module's tests"
done
echo "the bundle and the wheel: ok"
