if WITH_NCCL
plugin_LTLIBRARIES += backend_nccl.la
backend_nccl_la_SOURCES = $(BACKEND_COMMON) plugins/backend/nccl/backend.c plugins/backend/nccl/collective.c plugins/backend/nccl/comm.c \
	plugins/backend/nccl/comm.h plugins/backend/nccl/interface.c plugins/backend/nccl/launch.c plugins/backend/nccl/memory.c \
	plugins/backend/nccl/runtime.c plugins/backend/nccl/runtime.h plugins/backend/nccl/work.c
backend_nccl_la_CPPFLAGS = $(PLUGIN_CPPFLAGS) -I$(srcdir)/plugins/backend $(CUDA_CPPFLAGS)
backend_nccl_la_LDFLAGS = $(PLUGIN_LDFLAGS)
endif
