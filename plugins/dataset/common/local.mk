# What the datasets of this tree share, compiled into each: those that read files take the second list, those that sort
# texts the third, those with a split for validation the fourth, those of images the last two.
DATASET_COMMON = plugins/dataset/common/dataset.c plugins/dataset/common/dataset.h
DATASET_FILES = $(DATASET_COMMON) plugins/dataset/common/file.c plugins/dataset/common/file.h
DATASET_TEXTS = plugins/dataset/common/cell.c plugins/dataset/common/cell.h plugins/dataset/common/texts.c \
	plugins/dataset/common/texts.h
DATASET_SPLIT = plugins/dataset/common/split.c plugins/dataset/common/split.h
DATASET_ENTRY = plugins/dataset/common/entry.c plugins/dataset/common/entry.h
DATASET_TEMP = plugins/dataset/common/temp.c plugins/dataset/common/temp.h
IMAGE_SHARED = plugins/dataset/common/image/catalog.c plugins/dataset/common/image/exif.c \
	plugins/dataset/common/image/image.c plugins/dataset/common/image/jpeg.c plugins/dataset/common/image/png.c \
	plugins/dataset/common/image/verify.c plugins/dataset/common/image/webp.c
DATASET_IMAGES = $(DATASET_SPLIT) $(DATASET_TEXTS) $(IMAGE_SHARED) plugins/dataset/common/image/catalog.h \
	plugins/dataset/common/image/format.h plugins/dataset/common/image/image.h plugins/dataset/common/image/verify.h
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
DATASET_TOKENIZER = plugins/dataset/common/tokenizer/text.c $(TOKENIZER_SHARED) $(TOKENIZER_PIECES) $(TOKENIZER_H)
