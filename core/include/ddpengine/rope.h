/* ddpengine/rope.h -- the angles of DDP_OP_ROPE, the same for the core's reference and every device.
 *
 * Pair i of a head of D features turns by position * frequency(i). All is rounded to float where transformers'
 * modeling_rope_utils.py rounds: a frequency is a float, so is the angle, which at position 100,000 is seen. */
#ifndef DDPENGINE_ROPE_H
#define DDPENGINE_ROPE_H

#include <ddpengine/program.h>
#include <math.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DDP_ROPE_PI_ 3.14159265358979323846

/* The pair that turns `turns` times within the original context, as a real number. */
static inline double ddp_rope_pair_of_(const ddp_attrs *a, double turns)
{
    return (double)a->rope.head_dim * log((double)a->rope.original_context / (turns * 2.0 * DDP_ROPE_PI_)) /
           (2.0 * log(a->rope.theta));
}

/* "YaRN: Efficient Context Window Extension of Large Language Models" (Peng et al., 2023): fast pairs as they are, slow
 * ones divided by the factor, a ramp in between. */
static inline float ddp_rope_yarn_(const ddp_attrs *a, int64_t pair, float wave)
{
    double low = ddp_rope_pair_of_(a, a->rope.beta_fast > 0.0 ? a->rope.beta_fast : 32.0);
    double high = ddp_rope_pair_of_(a, a->rope.beta_slow > 0.0 ? a->rope.beta_slow : 1.0);
    float ramp, kept;

    if (!a->rope.exact) {
        low = floor(low);
        high = ceil(high);
    }
    low = low > 0.0 ? low : 0.0;
    high = high < (double)(a->rope.head_dim - 1) ? high : (double)(a->rope.head_dim - 1);
    if (low == high) high += 0.001;
    ramp = ((float)pair - (float)low) / (float)(high - low);
    ramp = ramp < 0.0f ? 0.0f : ramp > 1.0f ? 1.0f : ramp;
    kept = 1.0f - ramp;
    return 1.0f / ((float)a->rope.factor * wave) * (1.0f - kept) + 1.0f / wave * kept;
}

/* Llama 3.1: waves that are short against the original context stay, long ones are stretched by the factor. */
static inline float ddp_rope_llama3_(const ddp_attrs *a, float frequency)
{
    const double context = (double)a->rope.original_context, low = a->rope.low_freq_factor,
                 high = a->rope.high_freq_factor;
    float length = (float)(2.0 * DDP_ROPE_PI_) / frequency, smooth;

    if (length < (float)(context / high)) return frequency;
    if (length > (float)(context / low)) return frequency / (float)a->rope.factor;
    smooth = ((float)context / length - (float)low) / (float)(high - low);
    return (1.0f - smooth) * frequency / (float)a->rope.factor + smooth * frequency;
}

/* Radians that pair `pair`, of 0 .. head_dim / 2 - 1, turns by from one position to the next. */
static inline float ddp_rope_frequency(const ddp_attrs *a, int64_t pair)
{
    float part = (float)(2 * pair) / (float)a->rope.head_dim;
    float wave = (float)pow(a->rope.theta, (double)part), frequency = 1.0f / wave;

    if (a->rope.kind == DDP_ROPE_LINEAR) return frequency / (float)a->rope.factor;
    if (a->rope.kind == DDP_ROPE_LLAMA3) return ddp_rope_llama3_(a, frequency);
    if (a->rope.kind == DDP_ROPE_YARN) return ddp_rope_yarn_(a, pair, wave);
    return frequency;
}

/* That cos and sin are multiplied by. */
static inline float ddp_rope_scaling(const ddp_attrs *a)
{
    if (a->rope.attention_factor > 0.0) return (float)a->rope.attention_factor;
    return a->rope.kind == DDP_ROPE_YARN ? (float)(0.1 * log(a->rope.factor) + 1.0) : 1.0f;
}

#ifdef __cplusplus
}
#endif
#endif
