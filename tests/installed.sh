#!/bin/sh
# Installs into a folder of its own and uses what was installed, from elsewhere and without the build tree: the program
# trains, the man page is there, and the out-of-tree examples build against the installed headers and run.
set -eu
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
. tests/source.sh
source_tree "$work/source"
mkdir "$work/build"
(cd "$work/build" && "$source/configure" -q --prefix="$work/prefix" >/dev/null && make -s -j "$(nproc)" && make -s install >/dev/null)
rm -rf "$work/build"
export PKG_CONFIG_PATH="$work/prefix/lib/pkgconfig"
for f in bin/ddpengine include/ddpengine/plugin.h lib/pkgconfig/ddpengine-plugin.pc share/man/man1/ddpengine.1; do
    [ -f "$work/prefix/$f" ] || { echo "not installed: $f"; exit 1; }
done
engine=$work/prefix/bin/ddpengine
cp -r docs/examples "$work/examples"
for example in backend-skeleton model-example; do
    make -s -C "$work/examples/$example"
done
cd "$work"
DDPENGINE_PLUGIN_PATH=$work/examples/backend-skeleton:$work/examples/model-example
export DDPENGINE_PLUGIN_PATH
"$engine" plugins
for ini in examples/*/*.ini; do
    echo "-- $ini"
    "$engine" -c "$ini" --nproc 2
done
for plugin in backend.store model.resmlp; do
    echo "-- conform $plugin"
    "$engine" conform "$plugin" --quick --nproc 2
done
