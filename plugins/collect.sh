#!/bin/sh
# Writes plugins.mk, which Makefile.am includes: the local.mk of each folder plugins/KIND/NAME, and the rules of each
# models/NAME.c and samplers/NAME.c. So adding a plugin is adding its folder or file. Run by autoconf and each make,
# in the folder of configure.ac; the file is written where it changes, and make then makes the makefiles from it.
# A single file that is compiled with others says so in a line " * Built with: FILE FILE"; it then sees the headers of
# core/.
# `collect.sh m4`: what configure.ac includes, the checks that a plugin has in a configure.m4 of its own.
# `collect.sh list`: "KIND NAME" of each plugin.
set -eu

single() { # KIND FILE
    name=$(basename "$2" .c)
    library=$1_$name
    with=$(sed -n 's/^ \* Built with: //p' "$2")
    cat <<END

plugin_LTLIBRARIES += $library.la
${library}_la_SOURCES = $2${with:+ $with}
${library}_la_CPPFLAGS = \$(PLUGIN_CPPFLAGS)${with:+ -I\$(srcdir)/core}
${library}_la_CFLAGS = \$(AM_CFLAGS)
${library}_la_LDFLAGS = \$(PLUGIN_LDFLAGS)
${library}_la_LIBADD = -lm
END
}

write() {
    echo "# written by plugins/collect.sh"
    for makefile in plugins/*/common/local.mk $(ls plugins/*/*/local.mk | grep -v /common/); do
        echo "include \$(srcdir)/$makefile"
    done
    for source in models/*.c; do single model "$source"; done
    for source in samplers/*.c; do single sampler "$source"; done
}

export LC_ALL=C
case ${1-} in
list)
    for makefile in plugins/*/*/local.mk; do
        folder=${makefile%/local.mk}
        kind=${folder#plugins/}
        name=${folder##*/}
        [ "$name" = common ] || echo "${kind%%/*} $name"
    done
    for source in models/*.c samplers/*.c; do
        kind=${source%%s/*}
        name=$(basename "$source" .c)
        echo "$kind $name"
    done
    ;;
m4) for checks in plugins/*/*/configure.m4; do [ ! -f "$checks" ] || echo "m4_include([$checks])"; done ;;
*)
    new=$(write)
    if [ ! -f plugins.mk ] || [ "$new" != "$(cat plugins.mk)" ]; then
        printf '%s\n' "$new" >plugins.mk
        # autoconf does not know that it would include more now
        [ "${1-}" != make ] || rm -rf autom4te.cache
    fi
    ;;
esac
