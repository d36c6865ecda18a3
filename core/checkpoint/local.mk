libddpcore_a_SOURCES += core/checkpoint/safetensors.h core/checkpoint/safetensors_format.h \
	core/checkpoint/safetensors_write.c core/checkpoint/safetensors_read.c core/checkpoint/checkpoint.h \
	core/checkpoint/manifest.h core/checkpoint/manifest.c core/checkpoint/folder.h core/checkpoint/folder.c \
	core/checkpoint/checkpoint.c
EXTRA_DIST += docs/checkpoints.md docs/metrics.md
