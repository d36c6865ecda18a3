# What the datasets of this tree share, each a convenience library, compiled once: every dataset links the first, those of images
# the second, those of text the third.
DATASET_CPPFLAGS = $(PLUGIN_CPPFLAGS) -I$(srcdir)/plugins/dataset $(XXHASH_CFLAGS)
DATASET_LIB = libdataset.la
DATASET_SHARED = plugins/dataset/common/cell.c plugins/dataset/common/dataset.c plugins/dataset/common/entry.c \
	plugins/dataset/common/file.c plugins/dataset/common/split.c plugins/dataset/common/temp.c \
	plugins/dataset/common/texts.c
noinst_LTLIBRARIES += libdataset.la
libdataset_la_SOURCES = $(DATASET_SHARED) plugins/dataset/common/cell.h plugins/dataset/common/dataset.h \
	plugins/dataset/common/entry.h plugins/dataset/common/file.h plugins/dataset/common/split.h \
	plugins/dataset/common/temp.h plugins/dataset/common/texts.h
libdataset_la_CPPFLAGS = $(DATASET_CPPFLAGS)

IMAGE_SHARED = plugins/dataset/common/image/catalog.c plugins/dataset/common/image/exif.c \
	plugins/dataset/common/image/image.c plugins/dataset/common/image/jpeg.c plugins/dataset/common/image/png.c \
	plugins/dataset/common/image/verify.c plugins/dataset/common/image/webp.c
if WITH_IMAGES
IMAGE_LIB = libimage.la
noinst_LTLIBRARIES += libimage.la
libimage_la_SOURCES = $(IMAGE_SHARED) plugins/dataset/common/image/catalog.h plugins/dataset/common/image/format.h \
	plugins/dataset/common/image/image.h plugins/dataset/common/image/verify.h
libimage_la_CPPFLAGS = $(DATASET_CPPFLAGS) $(IMAGES_CFLAGS)
endif

# Tokenizers; where their libraries are not there, absent.c says so.
TOKENIZER_H = plugins/dataset/common/tokenizer/added.h plugins/dataset/common/tokenizer/bpe.h \
	plugins/dataset/common/tokenizer/buffer.h plugins/dataset/common/tokenizer/bytelevel.h \
	plugins/dataset/common/tokenizer/charsmap.h \
	plugins/dataset/common/tokenizer/steps/decode.h plugins/dataset/common/tokenizer/steps/newer.h \
	plugins/dataset/common/tokenizer/steps/normalize.h plugins/dataset/common/tokenizer/regex/newer.h \
	plugins/dataset/common/tokenizer/regex/unicode16.h plugins/dataset/common/tokenizer/regex/pattern.h \
	plugins/dataset/common/tokenizer/regex/program.h plugins/dataset/common/tokenizer/pieces.h \
	plugins/dataset/common/tokenizer/read.h \
	plugins/dataset/common/tokenizer/sentencepiece.h plugins/dataset/common/tokenizer/regex/sets.h \
	plugins/dataset/common/tokenizer/steps/split.h plugins/dataset/common/tokenizer/steps/steps.h \
	plugins/dataset/common/tokenizer/text.h plugins/dataset/common/tokenizer/tokenizer.h plugins/dataset/common/tokenizer/utf8.h \
	plugins/dataset/common/tokenizer/vocabulary.h
if WITH_TOKENIZER
TOKENIZER_SHARED = plugins/dataset/common/tokenizer/added.c plugins/dataset/common/tokenizer/bpe.c \
	plugins/dataset/common/tokenizer/charsmap.c \
	plugins/dataset/common/tokenizer/steps/decode.c plugins/dataset/common/tokenizer/model.c \
	plugins/dataset/common/tokenizer/steps/normalize.c plugins/dataset/common/tokenizer/regex/newer.c \
	plugins/dataset/common/tokenizer/regex/pattern.c \
	plugins/dataset/common/tokenizer/regex/program.c plugins/dataset/common/tokenizer/pieces.c \
	plugins/dataset/common/tokenizer/read.c \
	plugins/dataset/common/tokenizer/regex/sets.c plugins/dataset/common/tokenizer/steps/split.c \
	plugins/dataset/common/tokenizer/steps/steps.c plugins/dataset/common/tokenizer/tokenizer.c \
	plugins/dataset/common/tokenizer/utf8.c plugins/dataset/common/tokenizer/vocabulary.c
TOKENIZER_LINK = $(TOKENIZER_LIBS) $(JANSSON_LIBS)
if WITH_SENTENCEPIECE
TOKENIZER_PIECES = plugins/dataset/common/tokenizer/sentencepiece.cc
TOKENIZER_LINK += $(SENTENCEPIECE_LIBS)
else
TOKENIZER_PIECES = plugins/dataset/common/tokenizer/without_sentencepiece.c
endif
else
TOKENIZER_SHARED = plugins/dataset/common/tokenizer/absent.c
TOKENIZER_PIECES =
TOKENIZER_LINK =
endif
TOKENIZER_LIB = libtokenizer.la
# among the sources of what links it, as nodist_EXTRA: automake then takes the C++ compiler, whose library SentencePiece needs
LINK_AS_CXX = sentencepiece.cc
noinst_LTLIBRARIES += libtokenizer.la
libtokenizer_la_SOURCES = plugins/dataset/common/tokenizer/text.c $(TOKENIZER_SHARED) $(TOKENIZER_PIECES) $(TOKENIZER_H)
libtokenizer_la_CPPFLAGS = $(DATASET_CPPFLAGS) -I$(srcdir)/core $(JANSSON_CFLAGS)
