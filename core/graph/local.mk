libddpcore_a_SOURCES += core/graph/graph.h core/graph/internal.h core/graph/builder.c core/graph/finish.c \
	core/graph/optable.c core/graph/op_linear.c core/graph/op_pointwise.c core/graph/op_loss.c \
	core/graph/op_layer_norm.c core/graph/op_embedding.c core/graph/op_attention.c core/graph/op_dropout.c \
	core/graph/autodiff.c core/graph/program.c core/graph/recompute.c core/graph/stages.c core/graph/layout.c core/graph/lowered.c core/graph/plan.c \
	core/graph/state.c core/graph/reference.c
libddpcore_a_SOURCES += core/graph/op_conv.c core/graph/op_pool.c core/graph/op_batch_norm.c
