# What the datasets of this tree share, compiled into each; those that read files take the second list.
DATASET_COMMON = plugins/dataset/common/dataset.c plugins/dataset/common/dataset.h
DATASET_FILES = $(DATASET_COMMON) plugins/dataset/common/file.c plugins/dataset/common/file.h
