dnl included by configure.ac, found by plugins/collect.sh: what the datasets of images need
with_images=no
PKG_CHECK_MODULES([IMAGES], [libjpeg libpng libwebp], [with_images=yes], [with_images=no])
AM_CONDITIONAL([WITH_IMAGES], [test $with_images = yes])
