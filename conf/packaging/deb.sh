#!/bin/sh
# make deb: Debian packages of what `make dist` makes, in the folder deb/ of the build tree. debian/ is put into a copy of
# the tarball there, so that this tree has none.
#   deb.sh TARBALL     ddpengine-VERSION.tar.gz; CUDA=yes: also the packages that need the CUDA Toolkit
set -eu
tarball=$1
name=$(basename "$tarball" .tar.gz)
for tool in dpkg-buildpackage dh; do
    command -v "$tool" >/dev/null || { echo "make deb: error: no $tool; apt-get install build-essential debhelper" >&2; exit 1; }
done
rm -rf deb
mkdir deb
cp "$tarball" "deb/$(echo "$name" | tr - _).orig.tar.gz"
tar xzf "$tarball" -C deb
cd "deb/$name"
cp -r conf/packaging/debian .
version=${name#ddpengine-}
head -n 1 debian/changelog | grep -q "^ddpengine ($version-" || { echo "make deb: error: conf/packaging/debian/changelog is not of version $version" >&2; exit 1; }
profiles=nocheck
[ "${CUDA-no}" = no ] || profiles=$profiles,pkg.ddpengine.cuda
DEB_BUILD_OPTIONS="nocheck parallel=$(nproc) ${DEB_BUILD_OPTIONS-}" dpkg-buildpackage -b -us -uc --build-profiles="$profiles" \
    >../build.log 2>&1 || { tail -n 40 ../build.log >&2; exit 1; }
cd ..
rm -rf "$name"
ls ./*.deb
