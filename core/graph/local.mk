libddpcore_a_SOURCES += core/graph/graph.h core/graph/internal.h core/graph/adapt.c core/graph/autodiff.c core/graph/builder.c \
	core/graph/cached.c core/graph/counted.c core/graph/describe.c core/graph/finish.c core/graph/head.c core/graph/layout.c core/graph/lowered.c \
	core/graph/metrics.c core/graph/place.c core/graph/plan.c core/graph/program.c core/graph/recompute.c core/graph/recompute_blocks.c \
	core/graph/stages.c \
	core/graph/state.c core/graph/summary.c core/graph/fold.c
libddpcore_a_SOURCES += core/graph/ops/attention.c core/graph/ops/attention.h core/graph/ops/attention_apart.c \
	core/graph/ops/batch_norm.c core/graph/ops/conv.c \
	core/graph/ops/dropout.c core/graph/ops/embedding.c core/graph/ops/layer_norm.c core/graph/ops/linear.c \
	core/graph/ops/loss.c core/graph/ops/metric.c core/graph/ops/pair_loss.c core/graph/ops/pointwise.c core/graph/ops/pool.c core/graph/ops/reference.c core/graph/ops/rms_norm.c core/graph/ops/rope.c core/graph/ops/softmax_parts.c \
	core/graph/ops/table.c
