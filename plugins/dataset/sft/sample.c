/* plugins/dataset/sft/sample.c -- see sample.h; after LLaMA-Factory's data/processor/supervised.py and
 * processor_utils.py. */
#include "sample.h"

/* infer_seqlen: how much stays of a prompt and its answer where `room` tokens are left. */
static void shorten(uint64_t room, uint32_t *source, uint32_t *target)
{
    uint64_t most, left;

    if ((uint64_t)*target * 2 < room)
        most = room;
    else if ((uint64_t)*source * 2 < room)
        most = room - *source;
    else
        most = (uint64_t)((double)room * ((double)*target / (double)((uint64_t)*source + *target)));
    if (most < *target) *target = (uint32_t)most;
    left = room - *target;
    if (left < *source) *source = (uint32_t)left;
}

static ddp_status encode_turns(template *t, const conversation *c, sample_scratch *s, ddp_err *err)
{
    s->ids.size = s->ends.size = s->lengths.size = 0;
    for (size_t i = 0; i < c->count; i++) {
        DDP_TRY(template_encode(t, c, i, &s->ids, err));
        DDP_TRY(numbers_add(&s->ends, (uint32_t)s->ids.size, err));
        DDP_TRY(numbers_add(&s->lengths, 0, err));
    }
    return DDP_OK;
}

static uint32_t begin_of(const sample_scratch *s, size_t i) { return i > 0 ? s->ends.data[i - 1] : 0; }

/* Pairs in the order in which they get room: from the first on, or from the last where the history is masked. */
static size_t pair_at(const sample_rules *rules, size_t pairs, size_t n)
{
    return rules->mask_history ? pairs - 1 - n : n;
}

/* The lengths of the turns; how many pairs have any. */
static size_t share_room(const sample_rules *rules, size_t pairs, uint64_t used, sample_scratch *s)
{
    size_t n = 0;

    for (; n < pairs && used < rules->length; n++) {
        size_t i = 2 * pair_at(rules, pairs, n);
        uint32_t source = s->ends.data[i] - begin_of(s, i), target = s->ends.data[i + 1] - begin_of(s, i + 1);

        shorten(rules->length - used, &source, &target);
        s->lengths.data[i] = source;
        s->lengths.data[i + 1] = target;
        used += source + target;
    }
    return n;
}

static ddp_status add(numbers *out, const sample_scratch *s, size_t turn, uint32_t flags, uint32_t first, ddp_err *err)
{
    const uint32_t *ids = s->ids.data + begin_of(s, turn);

    for (uint32_t i = 0; i < s->lengths.data[turn]; i++)
        DDP_TRY(numbers_add(out, ids[i] | (i == 0 ? first : flags), err));
    return DDP_OK;
}

static ddp_status add_pair(const template *t, const sample_rules *rules, const sample_scratch *s, size_t pair, size_t n,
                           numbers *out, ddp_err *err)
{
    uint32_t source = rules->train_on_prompt ? LABEL_ID : 0;
    uint32_t first = !rules->train_on_prompt && t->efficient_eos && n != 0 ? LABEL_EOS : source;
    uint32_t target = rules->mask_history && n != 0 ? 0 : LABEL_ID;

    DDP_TRY(add(out, s, 2 * pair, source, first, err));
    return add(out, s, 2 * pair + 1, target, target, err);
}

ddp_status sample_make(template *t, const conversation *c, const sample_rules *rules, sample_scratch *s, numbers *out,
                       bool *truncated, ddp_err *err)
{
    size_t begin = out->size, pairs = c->count / 2, taken;

    DDP_TRY(encode_turns(t, c, s, err));
    taken = share_room(rules, pairs, t->efficient_eos ? 1 : 0, s);
    for (size_t i = 0; i < taken; i++) {
        size_t n = rules->mask_history ? taken - 1 - i : i;

        DDP_TRY(add_pair(t, rules, s, pair_at(rules, pairs, n), n, out, err));
    }
    *truncated = out->size - begin < s->ids.size;
    if (t->efficient_eos) DDP_TRY(numbers_add(out, (uint32_t)t->eos | LABEL_ID, err));
    if (out->size > begin) out->data[begin] |= SEGMENT_BEGIN;
    return DDP_OK;
}

void sample_scratch_free(sample_scratch *s)
{
    free(s->ids.data);
    free(s->ends.data);
    free(s->lengths.data);
    *s = (sample_scratch){0};
}
