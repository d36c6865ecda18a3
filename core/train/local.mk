libddpcore_a_SOURCES += core/train/ema.h core/train/measure/evaluate.h core/train/fault.h core/train/join.h core/train/loop.h core/train/rollback.h core/train/run.h \
	core/train/schedule.h core/train/step.h core/train/train.h core/train/trainer.h core/train/watch.h core/train/ways.h core/train/ema.c core/train/measure/evaluate.c \
	core/train/fault.c core/train/join.c core/train/loop.c core/train/rollback.c core/train/run.c core/train/schedule.c core/train/step.c \
	core/train/train.c core/train/trainer.c core/train/watch.c core/train/ways.c
libddpcore_a_SOURCES += core/train/reduce/bucket_size.h core/train/reduce/buckets.h core/train/reduce/clip.h \
	core/train/reduce/comm_stream.h core/train/reduce/direct.h core/train/reduce/hook.h core/train/reduce/hook_state.h \
	core/train/reduce/hooked.h core/train/reduce/not_finite.h core/train/reduce/reducer.h core/train/reduce/shards.h core/train/reduce/spans.h core/train/reduce/wire_order.h \
	core/train/reduce/bucket_size.c core/train/reduce/buckets.c core/train/reduce/clip.c core/train/reduce/comm_stream.c \
	core/train/reduce/direct.c core/train/reduce/hook.c core/train/reduce/hook_state.c core/train/reduce/not_finite.c \
	core/train/reduce/reducer.c core/train/reduce/shards.c core/train/reduce/spans.c core/train/reduce/wire_order.c
libddpcore_a_SOURCES += core/train/state/buffer_sync.h core/train/state/memory.h core/train/state/optim_state.h \
	core/train/state/replica_check.h core/train/state/resume.h core/train/state/resume_hook.h \
	core/train/state/resume_settings.h core/train/state/save.h core/train/state/snapshot.h core/train/state/survivor.h \
	core/train/state/tensors.h core/train/state/weights/check.h core/train/state/weights/fit.h core/train/state/weights/weights.h core/train/state/buffer_sync.c core/train/state/base_map.c core/train/state/memory.c \
	core/train/state/optim_state.c core/train/state/replica_check.c core/train/state/resume.c \
	core/train/state/resume_hook.c core/train/state/resume_settings.c core/train/state/save.c \
	core/train/state/snapshot.c core/train/state/survivor.c core/train/state/tensors.c core/train/state/weights/check.c core/train/state/weights/fit.c core/train/state/weights/weights.c
libddpcore_a_SOURCES += core/train/local/batch.h core/train/local/channel.h core/train/local/device_group.h \
	core/train/local/pipeline.h core/train/local/pipelined_step.h core/train/local/replicas.h core/train/local/stage.h \
	core/train/local/thread_pool.h core/train/local/batch.c core/train/local/channel.c core/train/local/device_group.c \
	core/train/local/pipeline.c core/train/local/pipelined_step.c core/train/local/replicas.c core/train/local/stage.c \
	core/train/local/thread_pool.c
libddpcore_a_SOURCES += core/train/measure/predict.h core/train/measure/predict.c core/train/measure/advice/advice.h \
	core/train/measure/advice/measured.h core/train/measure/advice/advice.c core/train/measure/advice/compute.c \
	core/train/measure/advice/hooks.c core/train/measure/advice/remedies.c core/train/measure/advice/report.c \
	core/train/measure/advice/work.c
libddpcore_a_SOURCES += core/train/measure/audit.h core/train/measure/evaluated.h core/train/measure/histograms.h core/train/measure/histograms.c core/train/measure/noise.h core/train/measure/profile.h core/train/measure/trace.h \
	core/train/measure/audit.c core/train/measure/evaluated.c core/train/measure/noise.c core/train/measure/profile.c core/train/measure/profile_report.c core/train/measure/trace.c
libddpcore_a_SOURCES += core/train/ranks/arenas.h core/train/ranks/link.h core/train/ranks/pipeline.h core/train/ranks/place.h core/train/ranks/place.c core/train/ranks/arenas.c \
	core/train/ranks/link.c core/train/ranks/pipeline.c core/train/ranks/update.c
libddpcore_a_SOURCES += core/train/outer/outer.h core/train/outer/outer.c core/train/state/local_states.h core/train/state/local_states.c
libddpcore_a_SOURCES += core/train/head/head.h core/train/head/pieces.h core/train/head/head.c core/train/head/evaluate.c core/train/head/pieces.c \
	core/train/head/rows.h core/train/head/rows.c core/train/head/step.c core/train/head/update.c
