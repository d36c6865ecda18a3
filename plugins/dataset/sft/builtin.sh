#!/bin/sh
# builtin.sh FOLDER FILE..: the templates as C on standard output.
set -eu

folder=$1
shift
names=
echo "/* made by plugins/dataset/sft/builtin.sh of conf/templates */"
echo "#include \"sft/builtin.h\""
for file; do
    name=$(basename "$file" .json)
    names="$names${names:+, }$name"
    echo "static const unsigned char template_$name[] = {"
    od -An -v -tu1 "$folder/$file" | sed 's/  *\([0-9]\)/\1/; s/  */, /g; s/$/,/'
    echo "};"
done
echo "const builtin_template builtin_templates[] = {"
for file; do
    name=$(basename "$file" .json)
    echo "    {\"$name\", template_$name, sizeof(template_$name)},"
done
echo "};"
echo "const unsigned long builtin_count = $#;"
echo "const char builtin_names[] = \"$names\";"
