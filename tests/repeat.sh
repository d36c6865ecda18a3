#!/bin/sh
# Whether `./quickstart check` is green every time, where it is hardest. Prints a line for each run, and how many were green.
#   tests/repeat.sh busy TIMES         in this tree, beside two endless loops for each processor
#   tests/repeat.sh bare TIMES ROOT    as root and as a user, by turns, in the Debian tree ROOT without /sys; this script, run as
#                                      root, makes it by debootstrap where it is not there, and copies this host's way to packages
set -eu
cd "$(dirname "$0")/.."
kind=${1:?busy or bare} times=${2:?how often} root=${3:-} green=0 runs=0 logs=${TMPDIR:-/tmp}

try() { # try NAME COMMAND...
    name=$1 from=$(date +%s) rc=0
    shift
    "$@" >"$logs/repeat-$name.log" 2>&1 || rc=$?
    runs=$((runs + 1))
    [ "$rc" != 0 ] || green=$((green + 1))
    echo "$name: exit $rc after $(($(date +%s) - from)) s: $(tail -n 1 "$logs/repeat-$name.log")"
}

inside() { # inside USER HOME COMMAND: in the bare tree, with a clean environment
    chroot --userspec="$1:$1" "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME="$2" sh -c "cd $2/ddpengine && $3"
}

case $kind in
busy)
    loops=""
    for _ in $(seq $((2 * $(nproc)))); do
        (while :; do :; done) &
        loops="$loops $!"
    done
    # shellcheck disable=SC2086
    trap 'kill $loops' EXIT
    for n in $(seq "$times"); do try "busy-$n" ./quickstart check; done
    ;;
bare)
    : "${root:?a folder for the Debian tree}"
    if [ ! -d "$root/etc" ]; then
        debootstrap --variant=minbase --include=ca-certificates,sudo bookworm "$root"
        cp -r /etc/apt/apt.conf.d/. "$root/etc/apt/apt.conf.d/"
        chroot "$root" useradd -m tester
        echo 'tester ALL=(ALL) NOPASSWD: ALL' >"$root/etc/sudoers.d/tester"
    fi
    mount -t proc proc "$root/proc"
    mount --rbind /dev "$root/dev"
    trap 'umount -R -l "$root/dev" "$root/proc"' EXIT
    for who in root tester; do
        home=$root/home/tester
        [ $who = tester ] || home=$root/root
        rm -rf "$home/ddpengine"
        git clone -q . "$home/ddpengine"
        chroot "$root" chown -R "$who:" "${home#"$root"}/ddpengine"
    done
    for n in $(seq "$times"); do
        try "root-$n" inside root /root "./quickstart check"
        try "user-$n" inside tester /home/tester "./quickstart check"
    done
    ;;
esac
echo "$green of $runs green"
[ "$green" = "$runs" ]
