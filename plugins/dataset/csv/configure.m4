dnl included by configure.ac, found by plugins/collect.sh
with_csv=no
saved_LIBS="$LIBS"; LIBS="-lcsv $LIBS"
AC_MSG_CHECKING([for libcsv])
AC_LINK_IFELSE([AC_LANG_PROGRAM([[#include <csv.h>
#if CSV_MAJOR < 3
#error too old
#endif]], [[struct csv_parser p; return csv_init(&p, CSV_STRICT | CSV_STRICT_FINI);]])], [with_csv=yes])
AC_MSG_RESULT([$with_csv])
LIBS="$saved_LIBS"
AM_CONDITIONAL([WITH_CSV], [test $with_csv = yes])
on_dataset_csv=$with_csv
why_dataset_csv='libcsv not found: apt-get install libcsv-dev'
