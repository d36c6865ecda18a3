#!/bin/sh
# What a packager does: make dist; the tarball alone has every file, builds without a warning and without autoconf, passes the tests that train and use
# what was trained (all have been built and have run elsewhere, from the same files), and installs. What was installed is then
# used from elsewhere without the build tree: the examples build against its headers, train and keep their contracts.
set -eu
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
. tests/source.sh

echo "-- make dist"
source_tree "$work/source"
mkdir "$work/build"
(cd "$work/build" && "$source/configure" -q --disable-dependency-tracking >/dev/null && make -s dist >/dev/null && mv ddpengine-*.tar.gz "$work")
if [ -e .git ]; then
    tar tzf "$work"/ddpengine-*.tar.gz | sed 's,^[^/]*/,,' | sort >"$work/packed"
    git ls-files ':!.ci' ':!.gitignore' | sort >"$work/tracked"
    missing=$(comm -13 "$work/packed" "$work/tracked")
    [ -z "$missing" ] || { echo "not in the tarball: $missing"; exit 1; }
fi
cd "$work"
tar xzf ddpengine-*.tar.gz
rm -rf build source ddpengine-*.tar.gz

echo "-- build and check, without autoconf, automake and libtool: whoever calls one of them finds a program that fails"
mkdir no-autotools
for tool in autoconf autoheader autom4te autoreconf automake aclocal libtool libtoolize m4; do
    for name in $tool $tool-1.16 $tool-1.17; do
        printf '#!/bin/sh\necho "%s was called: $*" | tee -a "%s" >&2\nexit 1\n' "$name" "$work/called" >"no-autotools/$name"
    done
done
chmod 755 no-autotools/*
everything=$PATH
PATH=$work/no-autotools:$PATH
cd ddpengine-*
CONFIG_SHELL=/bin/sh /bin/sh ./configure -q --disable-dependency-tracking --enable-werror --without-cuda --prefix="$work/prefix" >/dev/null
make -s -j "$(nproc)" >make.log 2>&1 || { tail -n 40 make.log; exit 1; }
if grep -A 5 'warning:' make.log; then exit 1; fi # those of an object that a cache has kept end no compiler
make -j "$(nproc)" check check_PROGRAMS= check_LTLIBRARIES= TESTS="tests/integration/test_use.py tests/integration/test_train.py" >check.log 2>&1 || {
    grep -E '^(FAIL|ERROR):|error:' check.log
    grep -rhE -A 15 '^not ok' --include='test_*.log' . | head -n 60
    exit 1
}
grep -E '^# (TOTAL|PASS|SKIP|FAIL|ERROR)' check.log
make -s install >/dev/null
[ ! -e "$work/called" ] || { echo "the tarball needs what it should bring:"; cat "$work/called"; exit 1; }

echo "-- one file more is a plugin more, by a plain make, which has them again"
PATH=$everything
sed 's/"toy"/"added"/' models/toy.c >models/added.c
make -s model_added.la >/dev/null
[ -f .libs/model_added.so ] || { echo "models/added.c was not noticed"; exit 1; }
cp -r docs/examples "$work/examples"

echo "-- with the libraries of the core alone: what stands in for the others builds, and says what is missing"
mkdir "$work/few"
for library in inih jansson openssl libssl libcrypto libxxhash; do
    cp "$(pkg-config --variable=pcfiledir $library)/$library.pc" "$work/few"
done
PKG_CONFIG_PATH="" PKG_CONFIG_LIBDIR="$work/few" CONFIG_SHELL=/bin/sh /bin/sh ./configure -q --disable-dependency-tracking --enable-werror \
    --without-cuda >few.log
for off in "dataset idx" "dataset folder" "dataset npy" "dataset tar" "export onnx" "output tensorboard" import-yaml; do
    grep -Eq "^  $off +no +[A-Za-z]" few.log || { echo "configure does not say why $off is off"; cat few.log; exit 1; }
done
rm -f ddpengine libddpinfer.la dataset_*.la
make -s -j "$(nproc)" ddpengine libddpinfer.la dataset_tokens.la dataset_sft.la >make.log 2>&1 || { tail -n 40 make.log; exit 1; }
refused() { # WORDS COMMAND...
    words=$1
    shift
    if "$@" >said 2>&1 || ! grep -qF -- "$words" said; then
        echo "$* does not say \"$words\":"
        cat said
        exit 1
    fi
}
refused "built without libyaml; install libyaml-dev" ./ddpengine import-yaml few.yaml
./ddpengine import-yaml --help >/dev/null
cd "$work"
rm -rf ddpengine-*

echo "-- what was installed"
export PKG_CONFIG_PATH="$work/prefix/lib/pkgconfig"
for f in bin/ddpengine include/ddpengine/plugin.h lib/pkgconfig/ddpengine-plugin.pc share/man/man1/ddpengine.1 share/man/man5/ddpengine.ini.5 \
    share/man/man7/ddpengine-backend-shm.7 share/bash-completion/completions/ddpengine share/zsh/site-functions/_ddpengine \
    include/ddpinfer.h lib/libddpinfer.so lib/pkgconfig/ddpinfer.pc; do
    [ -f "prefix/$f" ] || { echo "not installed: $f"; exit 1; }
done
engine=$work/prefix/bin/ddpengine
for example in backend-skeleton backend-sockets model-example hook-skeleton; do
    make -s -C "examples/$example"
done
DDPENGINE_PLUGIN_PATH=$work/examples/backend-skeleton:$work/examples/backend-sockets:$work/examples/model-example:$work/examples/hook-skeleton
export DDPENGINE_PLUGIN_PATH
"$engine" plugins
for ini in examples/*/*.ini; do
    echo "-- $ini"
    "$engine" -c "$ini" --nproc 2
done
echo "-- a plugin of ddpengine new"
"$engine" new model fresh --dir fresh
make -s -C fresh check install
(cd fresh && "$engine" -c example.ini --nproc 2 --set plugins.path=)
echo "-- libddpinfer: what it shows, and the example on a model that was trained just now"
shown=$(nm -D --defined-only prefix/lib/libddpinfer.so | sed 's/.* //' | grep -v '^ddp_infer_' || true)
[ -z "$shown" ] || { echo "libddpinfer.so shows $shown"; exit 1; }
printf '[model]\nplugin = mlp\n[model.mlp]\ninput = input\nclasses = 4\n[data]\nplugin = synthetic\n[data.synthetic]\n%s\n' \
    "$(printf 'shape = 12\nclasses = 4\nsamples = 64\n[checkpoint]\ndir = infer-ckpt')" >infer.ini
"$engine" -c infer.ini
make -s -C examples/infer-example
head -c 48 /dev/zero | LD_LIBRARY_PATH=$work/prefix/lib examples/infer-example/classify infer.ini infer-ckpt
for plugin in backend.store model.resmlp hook.carry; do
    echo "-- conform $plugin"
    "$engine" conform "$plugin" --quick --nproc 2
done
