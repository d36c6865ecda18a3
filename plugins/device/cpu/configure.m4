dnl included by configure.ac, found by plugins/collect.sh
# oneDNN 2.6 to 3.x, whose calls differ (plugins/device/cpu/onednn/api.h): what is linked here is one that each version has in
# its own form. Another version is named, with those that do. Without it convolutions go by device cpu's own product.
AC_ARG_WITH([dnnl], [AS_HELP_STRING([--without-dnnl], [build device cpu without oneDNN: some convolutions are slower])], [],
    [with_dnnl=yes])
onednn=no
onednn_version=""
why_onednn="switched off by --without-dnnl; some convolutions are slower"
AS_IF([test "x$with_dnnl" != xno], [
AC_MSG_CHECKING([for oneDNN 2.6 to 3.x])
AC_COMPILE_IFELSE([AC_LANG_PROGRAM([[#include <dnnl.h>]], [[]])],
    [onednn_version=$(printf '#include <dnnl_version.h>\nDDP_ONEDNN DNNL_VERSION_MAJOR DNNL_VERSION_MINOR DNNL_VERSION_PATCH\n' >conftest.c
        $CC -E -P $CPPFLAGS conftest.c 2>&AS_MESSAGE_LOG_FD | sed -n 's/^DDP_ONEDNN *\([[0-9]]*\) \([[0-9]]*\) \([[0-9]]*\)$/\1.\2.\3/p'
        rm -f conftest.c)])
saved_LIBS="$LIBS"; LIBS="-ldnnl $LIBS"
AS_IF([test -n "$onednn_version"], [AC_LINK_IFELSE([AC_LANG_PROGRAM([[#include <dnnl.h>
static const dnnl_dims_t two = {1, 1};
#if DNNL_VERSION_MAJOR == 2 && DNNL_VERSION_MINOR >= 6
static dnnl_status_t describe(dnnl_primitive_desc_t *d, dnnl_memory_desc_t m, dnnl_engine_t e)
{
    dnnl_convolution_desc_t op;

    return dnnl_convolution_forward_desc_init(&op, dnnl_forward_training, dnnl_convolution_direct, &m, &m, 0, &m, two, two,
                                              two) == dnnl_success ? dnnl_primitive_desc_create(d, &op, 0, e, 0)
                                                                   : dnnl_runtime_error;
}
#elif DNNL_VERSION_MAJOR == 3
static dnnl_status_t describe(dnnl_primitive_desc_t *d, dnnl_memory_desc_t m, dnnl_engine_t e)
{
    return dnnl_convolution_forward_primitive_desc_create(d, e, dnnl_forward_training, dnnl_convolution_direct, m, m, 0, m, two,
                                                          two, two, two, 0);
}
#else
#error no version that is known
#endif
static dnnl_memory_desc_t none;]], [[
    dnnl_primitive_desc_t d = 0;

    return describe(&d, none, 0) != dnnl_success && dnnl_version() != 0;]])], [onednn=yes])])
AC_MSG_RESULT([$onednn${onednn_version:+ ($onednn_version)}])
LIBS="$saved_LIBS"
AS_IF([test -n "$onednn_version"],
    [why_onednn="version $onednn_version does not fit or does not link, 2.6 to 3.x do; some convolutions are slower"],
    [why_onednn='not found (2.6 to 3.x): apt-get install libdnnl-dev; some convolutions are slower'])
])
AM_CONDITIONAL([WITH_DNNL], [test $onednn = yes])
