# What the datasets of this tree share, compiled into each: those that read files take the second list, those that sort
# texts the third, those with a split for validation the fourth, those of images the last two.
DATASET_COMMON = plugins/dataset/common/dataset.c plugins/dataset/common/dataset.h
DATASET_FILES = $(DATASET_COMMON) plugins/dataset/common/file.c plugins/dataset/common/file.h
DATASET_TEXTS = plugins/dataset/common/cell.c plugins/dataset/common/cell.h plugins/dataset/common/texts.c \
	plugins/dataset/common/texts.h
DATASET_SPLIT = plugins/dataset/common/split.c plugins/dataset/common/split.h
DATASET_TEMP = plugins/dataset/common/temp.c plugins/dataset/common/temp.h
IMAGE_SHARED = plugins/dataset/common/image/catalog.c plugins/dataset/common/image/exif.c \
	plugins/dataset/common/image/image.c plugins/dataset/common/image/jpeg.c plugins/dataset/common/image/png.c \
	plugins/dataset/common/image/verify.c plugins/dataset/common/image/webp.c
DATASET_IMAGES = $(DATASET_SPLIT) $(DATASET_TEXTS) $(IMAGE_SHARED) plugins/dataset/common/image/catalog.h \
	plugins/dataset/common/image/format.h plugins/dataset/common/image/image.h plugins/dataset/common/image/verify.h
