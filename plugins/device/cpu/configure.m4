dnl included by configure.ac, found by plugins/collect.sh
with_dnnl=no
saved_LIBS="$LIBS"; LIBS="-ldnnl $LIBS"
AC_MSG_CHECKING([for oneDNN])
AC_LINK_IFELSE([AC_LANG_PROGRAM([[#include <dnnl.h>]], [[return dnnl_version() == NULL;]])], [with_dnnl=yes])
AC_MSG_RESULT([$with_dnnl])
LIBS="$saved_LIBS"
AM_CONDITIONAL([WITH_DNNL], [test $with_dnnl = yes])
on_device_cpu=$with_dnnl
why_device_cpu='oneDNN not found: apt-get install libdnnl-dev'
