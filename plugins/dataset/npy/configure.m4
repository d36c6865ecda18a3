dnl included by configure.ac, found by plugins/collect.sh
with_libzip=no
PKG_CHECK_MODULES([LIBZIP], [libzip], [with_libzip=yes], [with_libzip=no])
AM_CONDITIONAL([WITH_LIBZIP], [test $with_libzip = yes])
on_dataset_npy=$with_libzip
why_dataset_npy='libzip not found: apt-get install libzip-dev'
