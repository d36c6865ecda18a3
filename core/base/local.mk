libddpcore_a_SOURCES += core/base/base.h core/base/log.h core/base/protobuf.h core/base/sys.h core/base/mt19937.h core/base/launcher.h core/base/launcher.c \
	core/base/error.c core/base/text.c core/base/memory.c core/base/log.c core/base/sys.c core/base/losses.h core/base/losses.c core/base/file.c core/base/embedded.h core/base/new_file.h core/base/new_file.c core/base/hash.c \
	core/base/available.c
pluginincludedir = $(includedir)/ddpengine
plugininclude_HEADERS = core/include/ddpengine/plugin.h core/include/ddpengine/backend.h \
	core/include/ddpengine/init.h core/include/ddpengine/device.h core/include/ddpengine/program.h \
	core/include/ddpengine/graph.h core/include/ddpengine/layers.h core/include/ddpengine/model.h core/include/ddpengine/sampler.h core/include/ddpengine/hook.h \
	core/include/ddpengine/dataset.h core/include/ddpengine/isa.h core/include/ddpengine/random.h core/include/ddpengine/rope.h \
	core/include/ddpengine/compose.h core/include/ddpengine/reduce.h core/include/ddpengine/simple_device.h
libddpcore_a_SOURCES += core/base/mt19937.c core/base/normal.c
if WITH_FAILPOINTS
libddpcore_a_SOURCES += core/base/failpoint.c
endif
EXTRA_DIST += core/base/failpoint.c core/base/embed.sh
# files of the tree as C
EMBED = $(srcdir)/core/base/embed.sh
