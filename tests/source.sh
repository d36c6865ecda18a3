# Sourced by the scripts that build the tree once more, elsewhere. source_tree FOLDER sets `source` to a tree that can be
# configured from another folder: this one, or a copy in FOLDER where this one is itself configured, which automake refuses.
source_tree()
{
    source=$(pwd)
    [ -x configure ] || autoreconf -fi >/dev/null 2>&1
    [ -f config.status ] || return 0
    source=$1
    make -s distdir distdir="$1" >/dev/null
}
