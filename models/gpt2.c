/* models/gpt2.c -- GPT-2 (Radford et al., "Language Models are Unsupervised Multitask Learners", 2019) with the names,
 * shapes and first values of Hugging Face's GPT2LMHeadModel. The output layer is the token embedding again, so that a
 * checkpoint has transformer.wte.weight and no lm_head.weight, as save_pretrained writes it; with `tied = no` it has
 * both.
 *
 * Reads "input" (T) i64, the tokens, and "target" (T) i64, the token that follows each; a target of -100 counts for
 * nothing. */
#include <ddpengine/model.h>
#include <stdlib.h>

enum { PRESET_GPT2, PRESET_GPT2_MEDIUM, PRESET_GPT2_LARGE, PRESET_GPT2_XL, PRESET_BYTES };
enum { MAX_LAYERS = 256 };

struct config {
    int32_t preset, untied; /* untied 1: tied = no */
    int64_t layers, heads, width, context, vocabulary, padded_vocabulary;
    double dropout;
    ddp_list place;
};

static const ddp_option options[] = {
    {.key = "preset",
     .dflt = "gpt2",
     .range = "gpt2|gpt2-medium|gpt2-large|gpt2-xl|bytes",
     .doc = "Sizes for the options that are 0: one of OpenAI's four models, or bytes: "
            "4 layers of width 256, each token a byte.",
     .type = DDP_OPT_ENUM,
     .offset = offsetof(struct config, preset)},
    {.key = "layers",
     .dflt = "0",
     .range = "0..256",
     .doc = "Number of transformer blocks.",
     .type = DDP_OPT_INT,
     .offset = offsetof(struct config, layers)},
    {.key = "heads",
     .dflt = "0",
     .range = "0..1024",
     .doc = "Number of attention heads of a block; width must be a multiple of it.",
     .type = DDP_OPT_INT,
     .offset = offsetof(struct config, heads)},
    {.key = "width",
     .dflt = "0",
     .range = "0..65536",
     .doc = "Number of features of a token, n_embd.",
     .type = DDP_OPT_INT,
     .offset = offsetof(struct config, width)},
    {.key = "context",
     .dflt = "0",
     .range = "0..1048576",
     .doc = "Longest sequence in tokens: rows of the position embedding.",
     .type = DDP_OPT_INT,
     .offset = offsetof(struct config, context)},
    {.key = "vocabulary",
     .dflt = "0",
     .range = "0..16777216",
     .doc = "Number of different tokens, which are 0 to vocabulary - 1.",
     .type = DDP_OPT_INT,
     .offset = offsetof(struct config, vocabulary)},
    {.key = "padded_vocabulary",
     .dflt = "0",
     .range = "0..16777216",
     .doc = "Rows of the token embedding, padding included, for example 50304 for 50257 tokens; 0: vocabulary. "
            "Padding takes no part in the loss.",
     .type = DDP_OPT_INT,
     .offset = offsetof(struct config, padded_vocabulary)},
    {.key = "dropout",
     .dflt = "0",
     .range = "0..1",
     .doc =
         "Dropout probability after the embeddings, of the attention weights and at the end of each residual branch; "
         "Hugging Face's models have 0.1.",
     .type = DDP_OPT_FLOAT,
     .offset = offsetof(struct config, dropout)},
    {.key = "tied",
     .dflt = "yes",
     .range = "yes|no",
     .doc = "Whether the output layer is the token embedding again, as OpenAI's models have it. "
            "no: it has a weight of its own, lm_head.weight.",
     .type = DDP_OPT_ENUM,
     .offset = offsetof(struct config, untied)},
    {.key = "place",
     .dflt = "",
     .doc = "With [train] parallel = model or pipeline: the first block of each device or stage, as BLOCK:INDEX. "
            "The index is into [train] device, or a stage's number. "
            "0:0, 6:1 puts blocks 0 to 5 on the first device and the others on the second. "
            "The embeddings go with block 0, what follows the blocks with the last one.",
     .type = DDP_OPT_STRING,
     .flags = DDP_OPT_F_LIST,
     .offset = offsetof(struct config, place)},
};

static const struct config presets[] = {
    [PRESET_GPT2] = {.layers = 12, .heads = 12, .width = 768, .context = 1024, .vocabulary = 50257},
    [PRESET_GPT2_MEDIUM] = {.layers = 24, .heads = 16, .width = 1024, .context = 1024, .vocabulary = 50257},
    [PRESET_GPT2_LARGE] = {.layers = 36, .heads = 20, .width = 1280, .context = 1024, .vocabulary = 50257},
    [PRESET_GPT2_XL] = {.layers = 48, .heads = 25, .width = 1600, .context = 1024, .vocabulary = 50257},
    [PRESET_BYTES] = {.layers = 4, .heads = 8, .width = 256, .context = 256, .vocabulary = 256},
};

static int64_t chosen(int64_t option, int64_t preset) { return option > 0 ? option : preset; }

static struct config with_preset(const struct config *c)
{
    const struct config *p = &presets[c->preset];
    struct config out = *c;

    out.layers = chosen(c->layers, p->layers);
    out.heads = chosen(c->heads, p->heads);
    out.width = chosen(c->width, p->width);
    out.context = chosen(c->context, p->context);
    out.vocabulary = chosen(c->vocabulary, p->vocabulary);
    out.padded_vocabulary = chosen(c->padded_vocabulary, out.vocabulary);
    return out;
}

static void check(ddp_graph *g, const struct config *c, ddp_tensor tokens)
{
    int64_t dims[DDP_MAX_DIMS];
    uint32_t rank = ddp_dims(g, tokens, dims);
    char message[256] = "";

    if (c->width % c->heads != 0)
        (void)snprintf(message, sizeof(message), "width = %lld cannot be split over heads = %lld", (long long)c->width,
                       (long long)c->heads);
    else if (c->padded_vocabulary < c->vocabulary)
        (void)snprintf(message, sizeof(message), "padded_vocabulary = %lld is less than vocabulary = %lld",
                       (long long)c->padded_vocabulary, (long long)c->vocabulary);
    else if (rank != 0 && rank != 2)
        (void)snprintf(message, sizeof(message), "field \"input\" must have the shape (T), the tokens of a sequence");
    else if (rank == 2 && dims[1] > c->context)
        (void)snprintf(message, sizeof(message),
                       "field \"input\" has sequences of %lld tokens and the model's context is %lld; "
                       "shorten the sequences or raise [model.gpt2] context",
                       (long long)dims[1], (long long)c->context);
    if (message[0] != '\0') ddp_graph_fail(g, message);
}

/* Item i of `place`; -1 where it is none. */
static int64_t placed_block(const struct config *c, size_t i, uint32_t *device)
{
    char text[16], *end;
    int64_t block;

    if (!ddp_place_item(&c->place, i, text, sizeof(text), device)) return -1;
    block = strtoll(text, &end, 10);
    return *end == '\0' && text[0] != '-' ? block : -1;
}

static void check_place(ddp_graph *g, const struct config *c)
{
    char message[192];
    uint32_t device;
    int64_t before = -1;

    for (size_t i = 0; i < c->place.count; i++) {
        const char *text = ((const char *const *)c->place.items)[i];
        int64_t block = placed_block(c, i, &device);

        if (block < 0)
            (void)snprintf(message, sizeof(message),
                           "place: \"%.64s\" is no block with a device; write for example 0:0, %lld:1", text,
                           (long long)(c->layers + 1) / 2);
        else if (block >= c->layers)
            (void)snprintf(message, sizeof(message),
                           "place: \"%.64s\" names a block that is not there: of %lld, 0 to %lld", text,
                           (long long)c->layers, (long long)c->layers - 1);
        else if (block <= before)
            (void)snprintf(message, sizeof(message), "place: \"%.64s\" goes backwards, it comes after block %lld", text,
                           (long long)before);
        else if (i == 0 && block > 0)
            (void)snprintf(message, sizeof(message),
                           "place: \"%.64s\" is the first item, which must say where block 0 is, as in 0:0", text);
        else
            message[0] = '\0';
        if (message[0] != '\0') ddp_graph_fail(g, message);
        before = block;
    }
}

/* What comes next is the block, and what follows. */
static void place(ddp_graph *g, const struct config *c, int64_t block)
{
    uint32_t device;

    for (size_t i = 0; i < c->place.count; i++)
        if (placed_block(c, i, &device) == block) ddp_place(g, device);
}

#define STD 0.02 /* of every weight's first values, save those at the end of a branch */

static ddp_tensor conv1d(ddp_graph *g, ddp_tensor x, int64_t out, ddp_tensor *weight, const char *name)
{
    return ddp_conv1d(g, x, out, STD, weight, "%s", name);
}

/* The weights of a block: drawn by the constructors, and again after all of them. */
struct drawn {
    ddp_tensor attn, attn_proj, fc, fc_proj;
};

static ddp_tensor attention(ddp_graph *g, const struct config *c, ddp_tensor x, struct drawn *d)
{
    ddp_scope(g, "attn");
    x = conv1d(g, x, 3 * c->width, &d->attn, "c_attn"); /* (N, T, 3 E): q, k and v */
    x = ddp_causal_attention(g, x, (uint32_t)c->heads, c->dropout);
    x = ddp_dropout(g, conv1d(g, x, c->width, &d->attn_proj, "c_proj"), c->dropout);
    ddp_scope_end(g);
    return x;
}

static ddp_tensor feed_forward(ddp_graph *g, const struct config *c, ddp_tensor x, struct drawn *d)
{
    ddp_scope(g, "mlp");
    x = ddp_gelu(g, conv1d(g, x, 4 * c->width, &d->fc, "c_fc"), 1); /* (N, T, 4 E); "gelu_new" */
    x = ddp_dropout(g, conv1d(g, x, c->width, &d->fc_proj, "c_proj"), c->dropout);
    ddp_scope_end(g);
    return x;
}

/* GPT2PreTrainedModel._init_weights, applied to a block: its layers in order, then the module that has a c_proj. */
static void draw_block(ddp_graph *g, const struct config *c, const struct drawn *d)
{
    double end = STD / sqrt(2.0 * (double)c->layers);

    ddp_init_again(g, d->attn, DDP_INIT_NORMAL, 0.0, STD);
    ddp_init_again(g, d->attn_proj, DDP_INIT_NORMAL, 0.0, STD);
    ddp_init_again(g, d->attn_proj, DDP_INIT_NORMAL, 0.0, end);
    ddp_init_again(g, d->fc, DDP_INIT_NORMAL, 0.0, STD);
    ddp_init_again(g, d->fc_proj, DDP_INIT_NORMAL, 0.0, STD);
    ddp_init_again(g, d->fc_proj, DDP_INIT_NORMAL, 0.0, end);
}

/* (N, T, E) -> (N, T, E) */
static ddp_tensor block(ddp_graph *g, const struct config *c, ddp_tensor x, struct drawn *d)
{
    x = ddp_add(g, x, attention(g, c, ddp_layer_norm(g, x, "ln_1"), d));
    return ddp_add(g, x, feed_forward(g, c, ddp_layer_norm(g, x, "ln_2"), d));
}

/* (N, T) -> (N, T, vocabulary) */
static ddp_tensor transformer(ddp_graph *g, const struct config *c, ddp_tensor tokens)
{
    struct drawn drawn[MAX_LAYERS];
    ddp_tensor x, wte, wpe, head;

    ddp_scope(g, "transformer");
    place(g, c, 0);
    x = ddp_embedding(g, tokens, c->padded_vocabulary, c->width, 1.0, &wte, "wte");
    x = ddp_dropout(g, ddp_position_embedding(g, x, c->context, 1.0, &wpe, "wpe"), c->dropout);
    for (int64_t i = 0; i < c->layers; i++) {
        place(g, c, i);
        ddp_scope(g, "h.%d", (int)i);
        x = block(g, c, x, &drawn[i]);
        ddp_scope_end(g);
    }
    x = ddp_layer_norm(g, x, "ln_f");
    ddp_scope_end(g);
    ddp_init_again(g, wte, DDP_INIT_NORMAL, 0.0, STD);
    ddp_init_again(g, wpe, DDP_INIT_NORMAL, 0.0, STD);
    for (int64_t i = 0; i < c->layers; i++) draw_block(g, c, &drawn[i]);
    /* the head's own draws come last, and are thrown away where it is tied: nothing sees them */
    if (!c->untied) return ddp_linear_tied(g, x, wte, "lm_head");
    x = ddp_linear_weight(g, x, c->padded_vocabulary, 0, &head, "lm_head");
    ddp_init_again(g, head, DDP_INIT_NORMAL, 0.0, STD);
    return x;
}

static ddp_status gpt2_build(ddp_graph *g, const void *config, ddp_err *err)
{
    const struct config c = with_preset(config);
    ddp_tensor tokens = ddp_input(g, "input"), target = ddp_input(g, "target"), logits; /* (N, T) */

    check(g, &c, tokens);
    check_place(g, &c);
    logits = transformer(g, &c, tokens); /* (N, T, vocabulary) */
    /* padding is no token: the loss is that of the model without it */
    ddp_loss(g, ddp_cross_entropy_padded(g, logits, target, c.vocabulary, 0.0));
    ddp_output(g, "logits", logits);
    return ddp_graph_status(g, err);
}

static const ddp_model_ops ops = {.struct_size = sizeof(ops), .build = gpt2_build};

DDP_PLUGIN_EXPORT const ddp_plugin ddp_plugin_desc = {
    DDP_PLUGIN_HEAD(MODEL, 0),
    DDP_PLUGIN_TAIL("gpt2", "0.1.0", "GPT-2 of any size, with Hugging Face's names and initial values",
                    DDP_OPTIONS(options, struct config), ops),
};
