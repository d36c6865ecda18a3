# tests/fuzz/fuzz.mk -- builds the core once more, below fuzz-build/: for libFuzzer with the sanitizers, and for gcov.
# Run by `make fuzz` and `make fuzz-coverage`, which give SRCDIR, CORE, TARGETS,
# SHARED, LIBS and CC, and CPPFLAGS in the environment.
BASE = -g -O1 -fno-omit-frame-pointer -ffp-contract=off -fno-math-errno -Wno-unknown-warning-option
SAN = -fsanitize=address,undefined -fno-sanitize-recover=undefined
names = $(patsubst tests/fuzz/targets/%.c,%,$(TARGETS))
common = $(filter %.c,$(CORE)) $(SHARED)
find = $(patsubst %,fuzz-build/$(1)/%.o,$(basename $(2)))

programs: $(addprefix fuzz-build/bin/,$(names))
coverage: fuzz-build/bin/coverage
.PHONY: programs coverage
.SECONDARY:

fuzz-build/libfuzzer/%.o: $(SRCDIR)/%.c
	@mkdir -p $(@D)
	$(CC) $(BASE) $(SAN) -fsanitize=fuzzer-no-link -DDDP_LIBFUZZER $(CPPFLAGS) -MMD -c -o $@ $<
fuzz-build/libfuzzer/%.o: $(SRCDIR)/%.cc
	@mkdir -p $(@D)
	$(CC) -std=c++17 $(BASE) $(SAN) -fno-sanitize=vptr -fsanitize=fuzzer-no-link $(CPPFLAGS) -MMD -c -o $@ $<
fuzz-build/coverage/%.o: $(SRCDIR)/%.c
	@mkdir -p $(@D)
	$(CC) -g -O0 --coverage $(CPPFLAGS) -MMD -c -o $@ $<
fuzz-build/coverage/%.o: $(SRCDIR)/%.cc
	@mkdir -p $(@D)
	$(CC) -std=c++17 -g -O0 --coverage $(CPPFLAGS) -MMD -c -o $@ $<

# as an archive: what a target has from a source that it includes is not taken twice
fuzz-build/%.a:
	rm -f $@
	ar rcs $@ $^
fuzz-build/libfuzzer.a: $(call find,libfuzzer,$(common))
fuzz-build/coverage.a: $(call find,coverage,$(common))
fuzz-build/bin/%: fuzz-build/libfuzzer/tests/fuzz/targets/%.o fuzz-build/libfuzzer.a
	@mkdir -p $(@D)
	$(CC) $(SAN) -fsanitize=fuzzer -o $@ $^ $(LIBS)
fuzz-build/bin/coverage: $(call find,coverage,$(TARGETS) tests/fuzz/replay.c) fuzz-build/coverage.a
	@mkdir -p $(@D)
	$(CC) --coverage -o $@ $^ $(LIBS)
-include $(shell find fuzz-build -name '*.d' 2>/dev/null)
