libddpcore_a_SOURCES += infer/answer.h infer/export/base.h infer/export/export.h infer/export/folder.h infer/export/gguf/adapter.h infer/export/gguf/file.h \
	infer/export/gguf/model.h infer/export/gguf/readers.h infer/export/gguf/vocabulary.h infer/export/gguf/words.h infer/export/merge.h infer/generate.h infer/model.h infer/predict.h infer/program.h infer/sample.h infer/text.h infer/tokenize.h \
	infer/answer.c infer/export/base.c infer/export/export.c infer/export/folder.c infer/export/gguf/gguf.c infer/export/gguf/adapter.c infer/export/gguf/file.c \
	infer/export/gguf/json.c infer/export/gguf/model.c infer/export/gguf/pieces.c infer/export/gguf/vocabulary.c infer/export/gguf/words.c infer/export/merge.c infer/export/peft.c infer/export/torch.c infer/generate.c infer/model.c infer/predict.c infer/program.c infer/sample.c infer/text.c infer/tokenize.c

# Of ONNX, in the program alone: C from the messages that libonnx-dev has.
ONNX_FILES = infer/export/onnx.c infer/export/onnx_build.c infer/export/onnx_build.h infer/export/onnx_ops.c
EXTRA_DIST += infer/export/no_onnx.c $(ONNX_FILES)
ONNX_LIBS =
if WITH_ONNX
noinst_LIBRARIES += libonnxmessages.a
nodist_libonnxmessages_a_SOURCES = infer/export/onnx.pb-c.c infer/export/onnx.pb-c.h
libonnxmessages_a_CPPFLAGS = -I$(builddir)/infer/export $(PROTOBUFC_CFLAGS)
libonnxmessages_a_CFLAGS = -w -fvisibility=hidden $(DDP_SAN)
noinst_LIBRARIES += libddponnx.a
libddponnx_a_SOURCES = $(ONNX_FILES)
libddponnx_a_CPPFLAGS = $(AM_CPPFLAGS) -isystem $(builddir)/infer/export $(PROTOBUFC_CFLAGS)
ONNX_LIBS += libddponnx.a libonnxmessages.a $(PROTOBUFC_LIBS)
BUILT_SOURCES += infer/export/onnx.pb-c.h
CLEANFILES += infer/export/onnx.pb-c.c infer/export/onnx.pb-c.h
infer/export/onnx.pb-c.c: $(ONNX_PROTO_DIR)/onnx.proto
	@$(MKDIR_P) infer/export
	$(AM_V_GEN)$(PROTOC_C) --proto_path=$(ONNX_PROTO_DIR) --c_out=infer/export onnx.proto
infer/export/onnx.pb-c.h: infer/export/onnx.pb-c.c
	@test -f $@
else
noinst_LIBRARIES += libddponnx.a
libddponnx_a_SOURCES = infer/export/no_onnx.c
libddponnx_a_CPPFLAGS = $(AM_CPPFLAGS)
ONNX_LIBS += libddponnx.a
endif

# The library for programs of others: of the core what it needs, all of it hidden.
include_HEADERS = infer/lib/ddpinfer.h
lib_LTLIBRARIES += libddpinfer.la
libddpinfer_la_SOURCES = infer/lib/infer.c
libddpinfer_la_LDFLAGS = -version-info 0:0:0 -export-symbols-regex '^ddp_infer_' -Wl,--exclude-libs,ALL -Wl,--as-needed $(DDP_NODEFS) \
	$(DDP_SAN) $(DDP_WRAP)
libddpinfer_la_LIBADD = $(CORE_LIBS)
pkgconfig_DATA += ddpinfer.pc
examples_inferdir = $(docdir)/examples/infer-example
dist_examples_infer_DATA = docs/examples/infer-example/classify.c docs/examples/infer-example/Makefile
