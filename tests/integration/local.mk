INTEGRATION_TESTS = tests/integration/test_train.py tests/integration/test_group.py tests/integration/test_checkpoint.py \
	tests/integration/test_errors.py tests/integration/test_plugins.py tests/integration/test_step.py \
	tests/integration/test_cli.py tests/integration/test_docs.py
EXTRA_DIST += tests/integration/harness.py tests/integration/count_malloc.c tests/integration/counting_sampler.c $(INTEGRATION_TESTS)
if WITH_GLOO
if WITH_DNNL
TESTS += $(INTEGRATION_TESTS)
endif
endif
