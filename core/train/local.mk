libddpcore_a_SOURCES += core/train/pipelined_step.h core/train/schedule.h core/train/trainer.h core/train/evaluate.c \
	core/train/pipelined_step.c core/train/schedule.c core/train/step.c core/train/trainer.c
libddpcore_a_SOURCES += core/train/reduce/clip.h core/train/reduce/comm_stream.h core/train/reduce/hook.h \
	core/train/reduce/hooked.h core/train/reduce/reducer.h core/train/reduce/bucket_size.c core/train/reduce/clip.c \
	core/train/reduce/comm_stream.c core/train/reduce/hook.c core/train/reduce/hook_state.c core/train/reduce/reducer.c \
	core/train/reduce/shards.c
libddpcore_a_SOURCES += core/train/state/memory.h core/train/state/tensors.h core/train/state/buffer_sync.c \
	core/train/state/memory.c core/train/state/optim_state.c core/train/state/replica_check.c core/train/state/resume.c \
	core/train/state/resume_hook.c core/train/state/tensors.c core/train/state/weights.c
libddpcore_a_SOURCES += core/train/local/channel.h core/train/local/device_group.h core/train/local/pipeline.h \
	core/train/local/replicas.h core/train/local/thread_pool.h core/train/local/channel.c core/train/local/device_group.c \
	core/train/local/pipeline.c core/train/local/replicas.c core/train/local/stage.c core/train/local/thread_pool.c
libddpcore_a_SOURCES += core/train/measure/profile.h core/train/measure/trace.h core/train/measure/profile.c \
	core/train/measure/profile_report.c core/train/measure/trace.c
