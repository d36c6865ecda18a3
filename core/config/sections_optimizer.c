/* config/sections_optimizer.c -- the table of [optimizer]; see sections.c. */
#include "config/sections.h"

#define L DDP_OPT_F_LIST

#define AT(field) offsetof(struct ddp_optimizer_config, field)
const ddp_option config_optimizer_options[CONFIG_OPTIMIZER_OPTIONS] = {
    {"algorithm", "sgd", "sgd|adam|adamw", "Update rule, as torch.optim's SGD, Adam or AdamW.", DDP_OPT_ENUM, 0,
     AT(algorithm)},
    {"lr", "0.01", "0..", "Learning rate.", DDP_OPT_FLOAT, 0, AT(lr)},
    {"momentum", "0", "0..", "Momentum of sgd.", DDP_OPT_FLOAT, 0, AT(momentum)},
    {"nesterov", "no", NULL, "Nesterov momentum of sgd; momentum must be above 0.", DDP_OPT_BOOL, 0, AT(nesterov)},
    {"betas", "0.9, 0.999", "0..1", "The two decay rates of adam and adamw, each below 1.", DDP_OPT_FLOAT, L,
     AT(betas)},
    {"eps", "1e-8", "0..", "Added to the denominator of adam and adamw.", DDP_OPT_FLOAT, 0, AT(eps)},
    {"weight_decay", "0", "0..", "Weight decay: L2 for sgd and adam, decoupled for adamw.", DDP_OPT_FLOAT, 0,
     AT(weight_decay)},
    {"no_decay", "", NULL,
     "Parameters without weight decay, by name, as in *.bias, *norm*; * matches any text. "
     "auto: those with fewer than two dimensions, such as biases and what norms scale and shift by.",
     DDP_OPT_STRING, L, AT(no_decay)},
    {"lr_factor", "", NULL,
     "Factors of the learning rate by name, as in head.*:10, embed*:0.1. "
     "The first pattern that fits a parameter counts; the factor of all others is 1.",
     DDP_OPT_STRING, L, AT(lr_factor)},
    {"clip_norm", "0", "0..",
     "Largest 2-norm of all gradients; above it they are scaled down, as by torch.nn.utils.clip_grad_norm_. 0: off.",
     DDP_OPT_FLOAT, 0, AT(clip_norm)},
    {"ema", "0", "0..1",
     "Decay of an exponential moving average of the parameters, as in 0.999; checkpoints hold it, and evaluations use it. "
     "As torch.optim.swa_utils.AveragedModel with get_ema_multi_avg_fn. 0: none.",
     DDP_OPT_FLOAT, 0, AT(ema)},
    {"schedule", "constant", "constant|step|linear|cosine|multi_step|one_cycle|plateau|lr_range",
     "How the learning rate changes after the warm-up. step: multiplied by gamma every step_size updates. "
     "linear, cosine: lowered to min_lr by the end of the run. multi_step: multiplied by gamma at each of milestones. "
     "one_cycle: rises to lr, then falls far below where it began, by the end of the run. "
     "plateau: multiplied by gamma when evaluations no longer improve. "
     "lr_range: rises exponentially from min_lr to lr, and the run ends where the loss diverges, as for `ddpengine lr`.",
     DDP_OPT_ENUM, 0, AT(schedule)},
    {"warmup_steps", "0", "0..", "Updates over which the learning rate rises to lr in equal steps.", DDP_OPT_INT, 0,
     AT(warmup_steps)},
    {"schedule_steps", "0", "0..",
     "Updates, warm-up included, after which linear and cosine have reached min_lr, and one_cycle its end. "
     "0: those of the run.",
     DDP_OPT_INT, 0, AT(schedule_steps)},
    {"step_size", "0", "0..", "Updates between two drops of the learning rate with schedule = step.", DDP_OPT_INT, 0,
     AT(step_size)},
    {"milestones", "", "1..", "Updates, rising, after which schedule = multi_step lowers the learning rate.",
     DDP_OPT_INT, L, AT(milestones)},
    {"gamma", "0.1", "0..", "Factor of each drop with schedule = step, multi_step and plateau.", DDP_OPT_FLOAT, 0,
     AT(gamma)},
    {"min_lr", "0", "0..",
     "Learning rate at the end of schedule = linear and cosine; the lowest one of schedule = plateau.", DDP_OPT_FLOAT,
     0, AT(min_lr)},
    {"pct_start", "0.3", "0..1", "Share of schedule = one_cycle in which the learning rate rises.", DDP_OPT_FLOAT, 0,
     AT(pct_start)},
    {"div_factor", "25", "1..", "schedule = one_cycle begins with lr / div_factor.", DDP_OPT_FLOAT, 0, AT(div_factor)},
    {"final_div_factor", "10000", "1..", "schedule = one_cycle ends with lr / div_factor / final_div_factor.",
     DDP_OPT_FLOAT, 0, AT(final_div_factor)},
    {"three_phase", "no", NULL,
     "yes: one_cycle falls from lr to lr / div_factor in as many updates as it rises, and then on to its end.",
     DDP_OPT_BOOL, 0, AT(three_phase)},
    {"anneal_strategy", "cos", "cos|linear", "Shape of the two parts of schedule = one_cycle.", DDP_OPT_ENUM, 0,
     AT(anneal_strategy)},
    {"cycle_momentum", "yes", NULL,
     "Whether schedule = one_cycle moves momentum (the first of betas) from max_momentum to base_momentum and back.",
     DDP_OPT_BOOL, 0, AT(cycle_momentum)},
    {"base_momentum", "0.85", "0..1", "Momentum where the learning rate of one_cycle is highest.", DDP_OPT_FLOAT, 0,
     AT(base_momentum)},
    {"max_momentum", "0.95", "0..1", "Momentum where the learning rate of one_cycle is lowest.", DDP_OPT_FLOAT, 0,
     AT(max_momentum)},
    {"metric", "loss", NULL,
     "Result of evaluations that schedule = plateau looks at, as in loss; min: or max: in front says what is better.",
     DDP_OPT_STRING, 0, AT(metric)},
    {"patience", "10", "0..", "Evaluations without improvement that schedule = plateau lets pass before a drop.",
     DDP_OPT_INT, 0, AT(patience)},
    {"threshold", "1e-4", "0..", "What schedule = plateau counts as an improvement, as threshold_mode says.",
     DDP_OPT_FLOAT, 0, AT(threshold)},
    {"threshold_mode", "rel", "rel|abs", "rel: threshold is a share of the best result. abs: it is a difference.",
     DDP_OPT_ENUM, 0, AT(threshold_mode)},
    {"cooldown", "0", "0..", "Evaluations after a drop of schedule = plateau that count for nothing.", DDP_OPT_INT, 0,
     AT(cooldown)},
};
#undef AT
