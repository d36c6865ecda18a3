# the longest come first: what is left at the end is short
INTEGRATION_TESTS = tests/integration/test_update.py tests/integration/test_backends.py \
	tests/integration/test_init.py tests/integration/test_train.py tests/integration/test_group.py \
	tests/integration/save/test_checkpoint.py tests/integration/test_errors.py tests/integration/test_plugins.py \
	tests/integration/test_step.py tests/integration/test_stop.py tests/integration/test_cli.py \
	tests/integration/test_docs.py tests/integration/test_conform.py tests/integration/test_network.py \
	tests/integration/test_mpi.py tests/integration/test_secret.py tests/integration/test_data.py tests/integration/model/test_import.py \
	tests/integration/data/test_tables.py tests/integration/data/test_images.py tests/integration/data/test_mixing.py tests/integration/data/test_sft.py tests/integration/data/test_tokenizers.py \
	tests/integration/habits/test_evaluations.py \
	tests/integration/habits/test_groups.py tests/integration/habits/test_ema.py tests/integration/habits/test_loss_mean.py \
	tests/integration/look/test_advise.py tests/integration/habits/test_sweep.py tests/integration/habits/test_lr.py \
	tests/integration/test_state.py tests/integration/test_use.py tests/integration/test_profile.py \
	tests/integration/test_affinity.py tests/integration/test_modes.py tests/integration/test_hooks.py tests/integration/model/test_nets.py \
	tests/integration/pipeline/test_pipeline.py tests/integration/pipeline/test_split_head.py tests/integration/model/test_metrics.py tests/integration/model/test_recipes.py tests/integration/model/test_predict.py tests/integration/model/test_recompute.py tests/integration/model/test_llama.py tests/integration/model/test_lora.py tests/integration/model/test_gguf.py tests/integration/model/test_export.py \
	tests/integration/watch/test_watch.py tests/integration/watch/test_rollback.py \
	tests/integration/watch/test_audit.py tests/integration/restart/test_restart.py \
	tests/integration/restart/test_missing.py tests/integration/save/test_async.py tests/integration/look/test_outputs.py tests/integration/look/test_ranks.py tests/integration/look/test_report.py tests/integration/preflight/test_preflight.py tests/integration/preflight/test_preflight_net.py tests/integration/look/test_manual.py \
	tests/integration/save/test_sharded.py tests/integration/save/test_world.py tests/integration/cuda/test_nccl.py tests/integration/kit/test_kit.py tests/integration/kit/test_troubleshooting.py tests/integration/hosts/test_hierarchy.py \
	tests/integration/hosts/test_aggregate.py tests/integration/hosts/test_launch.py tests/integration/hosts/test_manifests.py tests/integration/hosts/test_local_steps.py
# wholly long, and those above that have long cases
LONG_ALONE = tests/integration/hosts/test_slurm.py tests/integration/cuda/test_cuda.py tests/integration/cuda/test_cuda_nccl.py
LONG_INTEGRATION_TESTS = $(LONG_ALONE) tests/integration/data/test_images.py tests/integration/data/test_sft.py \
	tests/integration/data/test_tokenizers.py tests/integration/habits/test_groups.py \
	tests/integration/hosts/test_aggregate.py tests/integration/hosts/test_hierarchy.py \
	tests/integration/hosts/test_launch.py tests/integration/kit/test_kit.py tests/integration/look/test_advise.py \
	tests/integration/look/test_manual.py tests/integration/look/test_outputs.py tests/integration/look/test_report.py \
	tests/integration/model/test_export.py tests/integration/model/test_gguf.py tests/integration/model/test_lora.py \
	tests/integration/model/test_nets.py tests/integration/model/test_recipes.py \
	tests/integration/pipeline/test_pipeline.py tests/integration/restart/test_missing.py \
	tests/integration/restart/test_restart.py tests/integration/save/test_checkpoint.py \
	tests/integration/save/test_world.py tests/integration/test_backends.py tests/integration/test_cli.py \
	tests/integration/test_conform.py tests/integration/test_data.py tests/integration/test_docs.py \
	tests/integration/test_errors.py tests/integration/test_group.py tests/integration/test_init.py \
	tests/integration/test_mpi.py tests/integration/test_profile.py tests/integration/test_state.py \
	tests/integration/test_step.py tests/integration/test_update.py tests/integration/test_use.py \
	tests/integration/watch/test_audit.py tests/integration/watch/test_rollback.py \
	tests/integration/watch/test_watch.py
EXTRA_DIST += tests/integration/hosts/ssh.py tests/fixtures/kubernetes/schemas.json
EXTRA_DIST += $(LONG_ALONE) tests/fixtures/plugins/broken_backend.c tests/fixtures/plugins/broken_hook.c
EXTRA_DIST += tests/integration/support/buffered_model.c tests/integration/support/refuse_binding.c \
	tests/integration/support/flawed_device.c tests/integration/support/failing_backend.c \
	tests/integration/support/slow_disk.c tests/integration/support/skewed_clock.c tests/integration/support/infer_library.py tests/integration/support/gguf_live.py tests/integration/support/onnx_live.py
EXTRA_DIST += tests/integration/look/event_file.py tests/integration/look/see_report.py tests/integration/look/see_site.py tests/integration/harness.py tests/integration/checkpoint_files.py tests/integration/save/disk.py tests/integration/watch/flawed.py \
	tests/integration/support/count_malloc.c tests/integration/support/counting_sampler.c tests/integration/support/blocks_sampler.c \
	tests/integration/support/drifting_backend.c tests/integration/support/late_device.c tests/integration/support/slow_device.c tests/integration/support/slow_backend.c $(INTEGRATION_TESTS)
if WITH_GLOO
TESTS += $(INTEGRATION_TESTS)
LONG_TESTS += $(LONG_INTEGRATION_TESTS)
endif
