dnl included by configure.ac, found by plugins/collect.sh
with_gloo=no
AC_LANG_PUSH([C++])
saved_LIBS="$LIBS"; LIBS="-lgloo $LIBS"
AC_MSG_CHECKING([for Gloo])
AC_LINK_IFELSE([AC_LANG_PROGRAM([[#include <gloo/rendezvous/context.h>
#include <gloo/transport/tcp/device.h>]], [[gloo::rendezvous::Context c(0, 1); (void)c;]])], [with_gloo=yes])
AC_MSG_RESULT([$with_gloo])
LIBS="$saved_LIBS"
AC_LANG_POP([C++])
AM_CONDITIONAL([WITH_GLOO], [test $with_gloo = yes])
on_backend_gloo_tcp=$with_gloo
why_backend_gloo_tcp='Gloo not found: apt-get install libgloo-dev'
