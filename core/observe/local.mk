libddpcore_a_SOURCES += core/observe/observe.h core/observe/internal.h core/observe/observe.c \
	core/observe/metrics.c core/observe/summary.c core/observe/progress.c core/observe/commands.c core/observe/statistics.c core/observe/loss_spike.c \
	core/observe/audit.h core/observe/audit_index.h core/observe/audit_check.c core/observe/audit_index.c \
	core/observe/audit_record.c core/observe/audit_write.c
libddpcore_a_SOURCES += core/observe/prometheus.c core/observe/run_folder.h core/observe/run_folder.c core/observe/histograms/histograms.h core/observe/histograms/histograms.c core/observe/ranks/ranks.h core/observe/ranks/ranks.c core/observe/tensorboard/tensorboard.h

# The event file of TensorBoard: its messages by protobuf-c, its checksums by ISA-L.
EXTRA_DIST += core/observe/tensorboard/event.proto core/observe/tensorboard/tensorboard.c core/observe/tensorboard/absent.c
TENSORBOARD_LIBS =
noinst_LIBRARIES += libddptensorboard.a
if WITH_TENSORBOARD
libddptensorboard_a_SOURCES = core/observe/tensorboard/tensorboard.c
nodist_libddptensorboard_a_SOURCES = core/observe/tensorboard/event.pb-c.c core/observe/tensorboard/event.pb-c.h
libddptensorboard_a_CPPFLAGS = $(AM_CPPFLAGS) -isystem $(builddir)/core/observe/tensorboard $(PROTOBUFC_CFLAGS) $(ISAL_CFLAGS)
TENSORBOARD_LIBS += $(PROTOBUFC_LIBS) $(ISAL_LIBS)
BUILT_SOURCES += core/observe/tensorboard/event.pb-c.h
CLEANFILES += core/observe/tensorboard/event.pb-c.c core/observe/tensorboard/event.pb-c.h
core/observe/tensorboard/event.pb-c.c: $(srcdir)/core/observe/tensorboard/event.proto
	@$(MKDIR_P) core/observe/tensorboard
	$(AM_V_GEN)$(PROTOC_C) --proto_path=$(srcdir)/core/observe/tensorboard --c_out=core/observe/tensorboard event.proto
core/observe/tensorboard/event.pb-c.h: core/observe/tensorboard/event.pb-c.c
	@test -f $@
else
libddptensorboard_a_SOURCES = core/observe/tensorboard/absent.c
libddptensorboard_a_CPPFLAGS = $(AM_CPPFLAGS)
endif
