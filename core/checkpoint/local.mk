libddpcore_a_SOURCES += core/checkpoint/checkpoint.h core/checkpoint/folder.h core/checkpoint/inspect.h \
	core/checkpoint/lock.h core/checkpoint/manifest.h core/checkpoint/retention.h core/checkpoint/safetensors.h \
	core/checkpoint/settings_compare.h core/checkpoint/shards.h core/checkpoint/tensor_compare.h core/checkpoint/writer.h \
	core/checkpoint/checkpoint.c core/checkpoint/checkpoint_save.c core/checkpoint/folder.c core/checkpoint/history.c core/checkpoint/inspect.c \
	core/checkpoint/lock.c core/checkpoint/peft/adapter_config.h core/checkpoint/peft/adapter_config.c core/checkpoint/manifest.c core/checkpoint/retention.c core/checkpoint/settings_compare.c \
	core/checkpoint/shards.c core/checkpoint/shards_join.c core/checkpoint/tensor_compare.c core/checkpoint/writer.c
libddpcore_a_SOURCES += core/checkpoint/safetensors/file.h core/checkpoint/safetensors/format.h core/checkpoint/safetensors/scan.h core/checkpoint/safetensors/sink.h \
	core/checkpoint/safetensors/index.c core/checkpoint/safetensors/read.c core/checkpoint/safetensors/scan.c core/checkpoint/safetensors/sink.c \
	core/checkpoint/safetensors/write.c
EXTRA_DIST += docs/checkpoints.md docs/metrics.md
