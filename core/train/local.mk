libddpcore_a_SOURCES += core/train/session.h core/train/session.c core/train/variants.c core/train/report.c \
	core/train/reducer.h core/train/reducer.c core/train/trainer.h core/train/trainer.c core/train/step.c \
	core/train/evaluate.c core/train/resume.c
