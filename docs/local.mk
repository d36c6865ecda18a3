dist_man_MANS = docs/ddpengine.1
EXTRA_DIST += docs/architecture.md docs/performance.md docs/gpu-results.md docs/conform.md docs/starting.md docs/network.md \
	docs/backends.md docs/security.md docs/using.md docs/tuning.md docs/gpu.md docs/datasets.md
