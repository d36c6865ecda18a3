dist_man_MANS = docs/ddpengine.1
EXTRA_DIST += docs/overview.md docs/exit-codes.md docs/nets.md docs/llama.md docs/inference.md docs/lora.md docs/performance.md docs/gpu-results.md docs/conform.md \
	docs/starting.md docs/network.md docs/backends.md docs/security.md docs/using.md docs/tuning.md docs/gpu.md docs/datasets.md docs/fine-tuning.md \
	docs/recipes/photos.md docs/recipes/table.md docs/recipes/text.md docs/design/backends.md docs/design/checkpoints.md docs/design/control.md docs/design/devices.md docs/design/errors.md \
	docs/design/graph.md docs/design/launch.md docs/design/plugins.md docs/design/step.md \
	docs/design/testing.md docs/design/threads.md
