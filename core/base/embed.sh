#!/bin/sh
# embed.sh HEADER NAME FOLDER FILE..: the files as C on standard output, the list NAME of embedded.h that HEADER declares.
set -eu

header=$1
list=$2
folder=$3
shift 3
echo "/* made by core/base/embed.sh */"
echo "#include \"$header\""
n=0
for file; do
    echo "static const unsigned char file_$n[] = {"
    od -An -v -tu1 "$folder/$file" | sed 's/  *\([0-9]\)/\1/; s/  */, /g; s/$/,/'
    echo "};"
    n=$((n + 1))
done
echo "const ddp_embedded $list[] = {"
n=0
for file; do
    echo "    {\"$(basename "$file")\", file_$n, sizeof(file_$n)},"
    n=$((n + 1))
done
echo "};"
echo "const size_t ${list}_count = $#;"
