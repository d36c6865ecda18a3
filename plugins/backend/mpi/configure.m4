dnl included by configure.ac, found by plugins/collect.sh
# any MPI-3: Open MPI's or MPICH's pkg-config file, else what mpicc would add
with_mpi=no
PKG_CHECK_MODULES([MPI], [ompi-c], [with_mpi=maybe], [PKG_CHECK_MODULES([MPI], [mpich], [with_mpi=maybe], [
    AC_PATH_PROG([MPICC], [mpicc])
    AS_IF([test -n "$MPICC"], [
        with_mpi=maybe
        MPI_CFLAGS=$($MPICC --showme:compile 2>/dev/null || $MPICC -compile_info | cut -d' ' -f2-)
        MPI_LIBS=$($MPICC --showme:link 2>/dev/null || $MPICC -link_info | cut -d' ' -f2-)])])])
saved_LIBS="$LIBS"; LIBS="$MPI_LIBS $LIBS"
saved_CPPFLAGS="$CPPFLAGS"; CPPFLAGS="$MPI_CFLAGS $CPPFLAGS"
AC_MSG_CHECKING([for MPI-3])
AS_IF([test $with_mpi = maybe], [with_mpi=no; AC_LINK_IFELSE([AC_LANG_PROGRAM([[#include <mpi.h>
#if MPI_VERSION < 3
#error too old
#endif]], [[int level; return MPI_Init_thread(0, 0, MPI_THREAD_MULTIPLE, &level);]])], [with_mpi=yes])])
AC_MSG_RESULT([$with_mpi])
LIBS="$saved_LIBS"; CPPFLAGS="$saved_CPPFLAGS"
AC_SUBST([MPI_CFLAGS])
AC_SUBST([MPI_LIBS])
AM_CONDITIONAL([WITH_MPI], [test $with_mpi = yes])
on_backend_mpi=$with_mpi
why_backend_mpi='MPI-3 not found: apt-get install libopenmpi-dev openmpi-bin'
