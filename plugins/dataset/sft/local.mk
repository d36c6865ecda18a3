SFT_TEMPLATES = conf/templates/alpaca.json conf/templates/chatml.json conf/templates/default.json \
	conf/templates/llama2.json conf/templates/llama3.json conf/templates/qwen.json conf/templates/qwen3_nothink.json \
	conf/templates/smollm2.json
SFT_SHARED = plugins/dataset/sft/build.c plugins/dataset/sft/pack.c plugins/dataset/sft/row.c \
	plugins/dataset/sft/sample.c plugins/dataset/sft/source.c plugins/dataset/sft/template.c plugins/dataset/sft/tokens.c
SFT_H = plugins/dataset/sft/build.h plugins/dataset/sft/builtin.h plugins/dataset/sft/config.h plugins/dataset/sft/counts.h \
	plugins/dataset/sft/pack.h plugins/dataset/sft/row.h plugins/dataset/sft/sample.h plugins/dataset/sft/source.h plugins/dataset/sft/template.h plugins/dataset/sft/tokens.h
EXTRA_DIST += $(SFT_TEMPLATES) plugins/dataset/sft/exports.map
# the templates as C, so that the plugin looks for no file
CLEANFILES += plugins/dataset/sft/builtin.c
plugins/dataset/sft/builtin.c: $(SFT_TEMPLATES) $(EMBED)
	@$(MKDIR_P) plugins/dataset/sft
	$(AM_V_GEN)$(SHELL) $(EMBED) sft/builtin.h builtin_templates $(srcdir) $(SFT_TEMPLATES) >$@.part && mv $@.part $@
plugin_LTLIBRARIES += dataset_sft.la
dataset_sft_la_SOURCES = plugins/dataset/sft/sft.c $(SFT_SHARED) $(SFT_H)
nodist_dataset_sft_la_SOURCES = plugins/dataset/sft/builtin.c
dataset_sft_la_CPPFLAGS = $(DATASET_CPPFLAGS) -I$(srcdir)/core $(JANSSON_CFLAGS)
# as dataset tokens
dataset_sft_la_LDFLAGS = $(PLUGIN_LDFLAGS) -Wl,-z,nodelete -Wl,--version-script=$(srcdir)/plugins/dataset/sft/exports.map
nodist_EXTRA_dataset_sft_la_SOURCES = $(LINK_AS_CXX)
dataset_sft_la_LIBADD = $(TOKENIZER_LIB) $(DATASET_LIB) $(TOKENIZER_LINK) $(JANSSON_LIBS) -lm
