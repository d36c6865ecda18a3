dnl included by configure.ac, found by plugins/collect.sh
with_archive=no
PKG_CHECK_MODULES([ARCHIVE], [libarchive], [with_archive=yes], [with_archive=no])
test $with_images = yes || with_archive=no
AM_CONDITIONAL([WITH_ARCHIVE], [test $with_archive = yes])
on_dataset_tar=$with_archive
why_dataset_tar='libarchive, libjpeg, libpng or libwebp not found: apt-get install libarchive-dev libjpeg-dev libpng-dev libwebp-dev'
