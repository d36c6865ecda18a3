libddpcore_a_SOURCES += core/config/config.h core/config/defaults.h core/config/private.h core/config/sections.h core/config/config.c core/config/batches.c \
	core/config/sections.c core/config/sections_optimizer.c core/config/sections_lora.c core/config/settings.c core/config/options.c core/config/value.c core/config/ini.c \
	core/config/reader.c
