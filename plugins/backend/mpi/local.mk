if WITH_MPI
plugin_LTLIBRARIES += backend_mpi.la
backend_mpi_la_SOURCES = $(BACKEND_COMMON) plugins/backend/mpi/backend.c plugins/backend/mpi/collective.c \
	plugins/backend/mpi/collective.h plugins/backend/mpi/library.c plugins/backend/mpi/library.h \
	plugins/backend/mpi/reduce.c plugins/backend/mpi/reduce.h plugins/backend/mpi/leftovers.c plugins/backend/mpi/leftovers.h \
	plugins/backend/mpi/settings.c plugins/backend/mpi/settings.h
backend_mpi_la_CPPFLAGS = $(PLUGIN_CPPFLAGS) -I$(srcdir)/plugins/backend $(MPI_CFLAGS)
backend_mpi_la_CFLAGS = $(AM_CFLAGS) $(DDP_VECT)
# MPI ends in a destructor at the end of the process: the plugin stays mapped also when it is closed
backend_mpi_la_LDFLAGS = $(PLUGIN_LDFLAGS) -Wl,-z,nodelete
backend_mpi_la_LIBADD = $(BACKEND_REDUCE) $(MPI_LIBS)
endif
