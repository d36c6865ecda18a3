#!/bin/sh
# make check-deb: the Debian packages of `make deb` in a clean Debian of their own (a chroot, which mmdebstrap makes from the
# sources of this machine's apt), as root, and by lintian. Installs core and Gloo, trains over TCP where there is no MPI, changes to MPI by
# one package and one line of the INI, builds a plugin against -dev, removes everything and compares what files there are.
# Also the steps of conf/packaging/Containerfile. Several minutes.
#   tests/packages.sh FOLDER [ROOT.tar]     FOLDER has the *.deb; ROOT.tar: such a chroot, made where it is not there
set -eu
debs=$(cd "$1" && pwd)
here=$(cd "$(dirname "$0")/.." && pwd)
[ "$(id -u)" = 0 ] || { echo "SKIP: not root"; exit 77; }
command -v mmdebstrap >/dev/null || { echo "SKIP: no mmdebstrap; apt-get install mmdebstrap"; exit 77; }
# shellcheck disable=SC1091
. /etc/os-release
sources=/etc/apt/sources.list.d/debian.sources
[ -f "$sources" ] || sources=/etc/apt/sources.list

command -v lintian >/dev/null || { echo "SKIP: no lintian; apt-get install lintian"; exit 77; }
echo "-- lintian"
lintian --fail-on error,warning "$debs"/*.changes
work=$(mktemp -d)
root=$work/root
unmount() { for mounted in dev/shm dev proc; do ! mountpoint -q "$root/$mounted" || umount -l "$root/$mounted"; done; }
leave() {
    unmount
    rm -rf --one-file-system "$work"
}
trap leave EXIT
tar=${2-$work/root.tar}
if [ ! -f "$tar" ]; then
    echo "-- a clean Debian $VERSION_CODENAME"
    mmdebstrap --quiet --variant=apt "$VERSION_CODENAME" "$tar" "$sources"
fi

fresh() { # an empty $root of that Debian
    unmount
    rm -rf --one-file-system "$root"
    mkdir -p "$root"
    tar xf "$tar" -C "$root" --exclude=./dev/*
    mkdir -p "$root/proc" "$root/dev"
    mount -t proc proc "$root/proc"
    mount --bind /dev "$root/dev"
    mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
    cp /etc/resolv.conf "$root/etc/resolv.conf"
    mkdir -p "$root/debs" "$root/w"
    cp "$debs"/*.deb "$root/debs"
}
inside() { chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 HOME=/root \
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 sh -eu -c "cd /w; $1"; }
quiet() { inside "$1" >"$work/log" 2>&1 || { tail -n 30 "$work/log"; exit 1; }; }
get() { quiet "apt-get -q -y -o Dpkg::Use-Pty=0 --no-install-recommends install $*"; }
die() { echo "FAILED: $*"; exit 1; }
# what packages write beside files of their own
files() { (cd "$root" && find . -xdev \( -path ./proc -o -path ./dev -o -path ./debs -o -path ./w -o -path ./var/lib/dpkg -o -path ./var/lib/apt \
    -o -path ./var/cache -o -path ./var/log -o -path ./tmp -o -path ./run \) -prune -o -print | sort); }

fresh
cat >"$root/w/run.ini" <<'END'
[group]
backend = gloo-tcp
[train]
max_steps = 20
batch_size = 16
[model]
plugin = mlp
[model.mlp]
input = input
classes = 4
[data]
plugin = synthetic
[data.synthetic]
shape = 12
classes = 4
samples = 640
[optimizer]
lr = 0.1
[output]
dir = out
[checkpoint]
dir = ckpt
END
quiet "apt-get -q update"
files >"$work/before"

echo "-- core alone: the backend that is missing is named with its package"
get /debs/ddpengine_*.deb
quiet "ddpengine --version"
inside "ddpengine -c run.ini --nproc 2" >"$work/log" 2>&1 && die "gloo-tcp was there"
grep -q "It is in the package ddpengine-backend-gloo" "$work/log" || { cat "$work/log"; die "the package is not named"; }
sed 's/gloo-tcp/auto/' "$root/w/run.ini" >"$root/w/auto.ini"
quiet "ddpengine -c auto.ini --nproc 2"
inside "ddpengine -c auto.ini --set group.world_size=2 --set group.init_method=tcp://10.0.0.1:29500 --check" >"$work/log" 2>&1 && die "auto took another"
grep -q "packages: ddpengine-backend-gloo, ddpengine-backend-mpi" "$work/log" || { cat "$work/log"; die "auto does not name packages"; }

echo "-- Gloo, and no MPI"
get /debs/ddpengine-backend-gloo_*.deb
quiet "rm -rf out ckpt; ddpengine -c run.ini --nproc 2; test -f out/summary.json"
inside "dpkg -l | grep -i -E 'openmpi|mpich'" && die "an MPI is there"
[ -z "$(find "$root/usr/lib" -name 'libmpi.so*')" ] || die "an MPI is there"
quiet "ddpengine conform backend.gloo-tcp --quick --nproc 2"

echo "-- MPI by one package and one line"
sed -i 's/^backend = .*/backend = mpi/' "$root/w/run.ini"
get /debs/ddpengine-backend-mpi_*.deb
quiet "rm -rf out ckpt; ddpengine -c run.ini --nproc 2; test -f out/summary.json"

echo "-- manual pages, completion and the unit are where Debian looks"
for f in usr/share/man/man1/ddpengine.1.gz usr/share/man/man5/ddpengine.ini.5.gz usr/share/man/man7/ddpengine-backend-mpi.7.gz \
    usr/share/bash-completion/completions/ddpengine usr/share/zsh/vendor-completions/_ddpengine; do
    # a minimal Debian leaves manual pages out
    [ -f "$root/$f" ] || grep -q "path-exclude.*man" "$root"/etc/dpkg/dpkg.cfg.d/* 2>/dev/null || die "no /$f"
done
[ -f "$root/lib/systemd/system/ddpengine@.service" ] || die "no ddpengine@.service"
[ -d "$root/etc/ddpengine" ] || die "no /etc/ddpengine"

echo "-- a plugin and a program against libddpengine-dev"
get /debs/libddpinfer0_*.deb /debs/libddpengine-dev_*.deb /debs/ddpengine-doc_*.deb gcc libc6-dev make pkg-config
cp -r "$here/docs/examples" "$root/w/examples"
quiet "make -C examples/hook-skeleton && DDPENGINE_PLUGIN_PATH=/w/examples/hook-skeleton ddpengine conform hook.carry --quick --nproc 2"
quiet "make -C examples/infer-example && head -c 48 /dev/zero | examples/infer-example/classify run.ini ckpt"

echo "-- removed, nothing is left"
quiet "apt-get -q -y purge 'ddpengine*' 'libddp*' gcc libc6-dev make pkg-config && apt-get -q -y --purge autoremove"
inside "dpkg -l | grep ddp" && die "packages are left"
files >"$work/after"
# a copy of /etc/gshadow that Debian's own tools keep, since Open MPI's packages bring a group
if diff "$work/before" "$work/after" | grep '^[<>]' | grep -v ' ./etc/gshadow-$'; then die "files are left, or gone"; fi

echo "-- the steps of the Containerfile"
fresh
quiet "apt-get -q update"
# each RUN is a step; COPY packages/ is what `fresh` has done
mkdir "$root/packages"
cp "$debs"/*.deb "$root/packages"
sed -e ':join' -e '/\\$/{' -e N -e 's/\\\n *//' -e 'b join' -e '}' "$here/conf/packaging/Containerfile" | sed -n 's/^RUN //p' >"$work/steps"
[ -s "$work/steps" ] || die "no steps"
while IFS= read -r step; do quiet "cd /; $step" </dev/null; done <"$work/steps"
entry=$(sed -n 's/^ENTRYPOINT \["\(.*\)"\]$/\1/p' "$here/conf/packaging/Containerfile")
quiet "$entry --version; $entry plugins | grep gloo-tcp"
echo "all packages: ok"
