dnl included by configure.ac, found by plugins/collect.sh: what the datasets of images need
with_images=no
PKG_CHECK_MODULES([IMAGES], [libjpeg libpng libwebp], [with_images=yes], [with_images=no])
AM_CONDITIONAL([WITH_IMAGES], [test $with_images = yes])
dnl tokenizers; without these libraries the dataset tokens knows bytes and numbers alone
with_tokenizer=no
PKG_CHECK_MODULES([TOKENIZER], [oniguruma libutf8proc], [with_tokenizer=yes], [with_tokenizer=no])
AM_CONDITIONAL([WITH_TOKENIZER], [test $with_tokenizer = yes])
with_sentencepiece=no
AS_IF([test $with_tokenizer = yes],
    [PKG_CHECK_MODULES([SENTENCEPIECE], [sentencepiece], [with_sentencepiece=yes], [with_sentencepiece=no])])
dnl the trainer, which sentencepiece.pc names too, is not used
AS_IF([test $with_sentencepiece = yes], [SENTENCEPIECE_LIBS=-lsentencepiece], [SENTENCEPIECE_LIBS=])
AC_SUBST([SENTENCEPIECE_LIBS])
AM_CONDITIONAL([WITH_SENTENCEPIECE], [test $with_sentencepiece = yes])
