dnl included by configure.ac, found by plugins/collect.sh
# oneDNN 2.6 to 3.x, whose calls differ (plugins/device/cpu/onednn/api.h): what is linked here is one that each version has in
# its own form. Another version is named, with those that do.
with_dnnl=no
onednn_version=""
AC_MSG_CHECKING([for oneDNN 2.6 to 3.x])
AC_COMPILE_IFELSE([AC_LANG_PROGRAM([[#include <dnnl.h>]], [[]])],
    [onednn_version=$(printf '#include <dnnl_version.h>\nDDP_ONEDNN DNNL_VERSION_MAJOR DNNL_VERSION_MINOR DNNL_VERSION_PATCH\n' >conftest.c
        $CC -E -P $CPPFLAGS conftest.c 2>&AS_MESSAGE_LOG_FD | sed -n 's/^DDP_ONEDNN *\([[0-9]]*\) \([[0-9]]*\) \([[0-9]]*\)$/\1.\2.\3/p'
        rm -f conftest.c)])
saved_LIBS="$LIBS"; LIBS="-ldnnl $LIBS"
AS_IF([test -n "$onednn_version"], [AC_LINK_IFELSE([AC_LANG_PROGRAM([[#include <dnnl.h>
#if DNNL_VERSION_MAJOR == 2 && DNNL_VERSION_MINOR >= 6
static dnnl_status_t describe(dnnl_primitive_desc_t *d, dnnl_memory_desc_t m, dnnl_engine_t e)
{
    dnnl_matmul_desc_t op;

    return dnnl_matmul_desc_init(&op, &m, &m, 0, &m) == dnnl_success ? dnnl_primitive_desc_create(d, &op, 0, e, 0)
                                                                     : dnnl_runtime_error;
}
#elif DNNL_VERSION_MAJOR == 3
static dnnl_status_t describe(dnnl_primitive_desc_t *d, dnnl_memory_desc_t m, dnnl_engine_t e)
{
    return dnnl_matmul_primitive_desc_create(d, e, m, m, 0, m, 0);
}
#else
#error no version that is known
#endif
static dnnl_memory_desc_t none;]], [[
    dnnl_primitive_desc_t d = 0;

    return describe(&d, none, 0) != dnnl_success && dnnl_version() != 0;]])], [with_dnnl=yes])])
AC_MSG_RESULT([$with_dnnl${onednn_version:+ ($onednn_version)}])
LIBS="$saved_LIBS"
AM_CONDITIONAL([WITH_DNNL], [test $with_dnnl = yes])
on_device_cpu=$with_dnnl
AS_IF([test -n "$onednn_version"],
    [why_device_cpu="oneDNN $onednn_version does not fit or does not link: versions 2.6 to 3.x do"],
    [why_device_cpu='oneDNN not found (2.6 to 3.x): apt-get install libdnnl-dev'])
