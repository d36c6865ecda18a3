CSV_SHARED = plugins/dataset/csv/agree.c plugins/dataset/csv/columns.c plugins/dataset/csv/describe.c \
	plugins/dataset/csv/fit.c plugins/dataset/csv/scan.c plugins/dataset/csv/table.c
if WITH_CSV
plugin_LTLIBRARIES += dataset_csv.la
dataset_csv_la_SOURCES = plugins/dataset/csv/csv.c $(CSV_SHARED) plugins/dataset/csv/agree.h \
	plugins/dataset/csv/columns.h plugins/dataset/csv/config.h plugins/dataset/csv/describe.h \
	plugins/dataset/csv/fit.h plugins/dataset/csv/scan.h plugins/dataset/csv/table.h
dataset_csv_la_CPPFLAGS = $(DATASET_CPPFLAGS)
dataset_csv_la_LDFLAGS = $(PLUGIN_LDFLAGS)
dataset_csv_la_LIBADD = $(DATASET_LIB) -lcsv -lm
endif
