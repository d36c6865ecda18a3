libddpcore_a_SOURCES += core/train/session.h core/train/session.c core/train/plugins.h core/train/plugins.c core/train/variants.c core/train/report.c core/train/pin.h core/train/pin.c \
	core/train/reducer.h core/train/reducer.c core/train/trainer.h core/train/trainer.c core/train/memory.h core/train/memory.c core/train/lane.h core/train/lane.c core/train/step.c core/train/profile.h core/train/profile.c core/train/profile_report.c core/train/shards.c core/train/states.c core/train/schedule.h core/train/schedule.c core/train/clip.h core/train/clip.c core/train/trace.h core/train/trace.c core/train/link.c core/train/hook.h core/train/hook.c core/train/hooked.h core/train/hookstate.c \
	core/train/evaluate.c core/train/replicas.c core/train/resume.c core/train/resume_hook.c core/train/buffers.c core/train/weights.c core/train/generate.h core/train/generate.c \
	core/train/tensors.h core/train/tensors.c core/train/devices.h core/train/devices.c core/train/team.h core/train/team.c \
	core/train/crew.h core/train/crew.c core/train/dp.h core/train/dp.c \
	core/train/channel.h core/train/channel.c core/train/pipeline.h core/train/pipeline.c core/train/stage.c
