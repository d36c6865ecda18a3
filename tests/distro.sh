#!/bin/sh
# The README's commands where nothing is installed: a fresh Debian of RELEASE (bookworm, trixie, forky), without /sys, in which a
# clone of the last commit builds and is tested. Prints what the command prints; ends as it does.
#   tests/distro.sh RELEASE [root|user] [COMMAND]
# COMMAND: "./quickstart check" where it is left out. In the environment: CC, CXX, DDPENGINE_CPU and, as root, CCACHE_DIR go along, EXTRA
# names more packages, KEEP a folder in which the Debian stays (made where it is not there). As root, with mmdebstrap.
set -eu
cd "$(dirname "$0")/.."
release=${1:?a release of Debian} who=${2:-root} command=${3:-./quickstart check}
[ "$(id -u)" = 0 ] || { printf 'skipped: a Debian of its own takes root\n0 passed, 0 failed, 1 skipped\n'; exit 77; }
command -v mmdebstrap >/dev/null || { echo "distro.sh: no mmdebstrap; apt-get install mmdebstrap"; exit 1; }
started=$(date +%s)
say() { echo "-- $release as $who, $(($(date +%s) - started)) s: $*"; }

work=$(mktemp -d)
root=${KEEP:-$work/root}
trap 'rm -rf --one-file-system "$work"' EXIT
if [ ! -d "$root/etc" ]; then
    set -- # a snapshot of testing may be older than its Release file allows
    [ "$release" != forky ] || set -- --aptopt='Acquire::Check-Valid-Until "false"'
    mmdebstrap --quiet --variant=minbase --include="ca-certificates,sudo${EXTRA:+,$EXTRA}" "$@" "$release" "$root" >"$work/log" 2>&1 || {
        tail -n 20 "$work/log"
        exit 1
    }
    chroot "$root" useradd -m tester
    echo 'tester ALL=(ALL) NOPASSWD: ALL' >"$root/etc/sudoers.d/tester"
fi
cp /etc/resolv.conf "$root/etc/resolv.conf" 2>/dev/null || true
home=/root
[ "$who" = root ] || who=tester home=/home/tester
rm -rf "$root$home/ddpengine"
git clone -q . "$root$home/ddpengine"
chroot "$root" chown -R "$who:" "$home/ddpengine"
cache=${CCACHE_DIR:-}
[ "$who" = root ] || cache="" # a user may not write in it
[ -z "$cache" ] || mkdir -p "$cache" "$root/ccache"
say "a fresh Debian is there; $command"

# In name spaces of its own: what the tests leave behind goes with them, mounts and processes.
# shellcheck disable=SC2016
unshare --mount --pid --fork --kill-child --propagation private sh -euc '
root=$1 who=$2 home=$3 command=$4 cache=$5
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
[ -z "$cache" ] || mount --bind "$cache" "$root/ccache"
exec chroot --userspec="$who:$who" "$root" env -i PATH="${cache:+/usr/lib/ccache:}/usr/sbin:/usr/bin:/sbin:/bin" HOME="$home" USER="$who" \
    ${CC:+CC="$CC"} ${CXX:+CXX="$CXX"} ${DDPENGINE_CPU:+DDPENGINE_CPU="$DDPENGINE_CPU"} ${cache:+CCACHE_DIR=/ccache} \
    ${CCACHE_NOHASHDIR:+CCACHE_NOHASHDIR=1} sh -c "cd $home/ddpengine && $command"' sh "$root" "$who" "$home" "$command" "$cache"
