dnl included by configure.ac, found by plugins/collect.sh
with_zlib=no
PKG_CHECK_MODULES([ZLIB], [zlib], [with_zlib=yes], [with_zlib=no])
AM_CONDITIONAL([WITH_ZLIB], [test $with_zlib = yes])
on_dataset_idx=$with_zlib
why_dataset_idx='zlib not found: apt-get install zlib1g-dev'
