dist_man_MANS = docs/ddpengine.1
EXTRA_DIST += docs/architecture.md docs/performance.md
