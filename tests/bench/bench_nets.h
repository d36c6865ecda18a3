/* bench_nets.h -- the networks of bench_ops: torchvision's ResNet-18 at 96 x 96, batch 16; the two-convolution net
 * usual for MNIST, batch 64; a GPT of 4 layers, 256 wide, 8 heads, over bytes, 8 x 256 tokens; GPT-2 124M, 1 x 256
 * tokens. */
#pragma once

#include <ddpengine/dataset.h>
#include <ddpengine/layers.h>

/* ---- convolutions ------------------------------------------------------------------------------------------------ */
static ddp_tensor conv(ddp_graph *g, ddp_tensor x, int64_t out, int64_t kernel, int64_t stride, const char *name)
{
    const ddp_conv_spec s = {.out = out, .kernel = kernel, .stride = stride, .padding = kernel / 2};

    return ddp_conv2d(g, x, &s, NULL, "%s", name);
}

static ddp_tensor block(ddp_graph *g, ddp_tensor x, int64_t out, int64_t stride, int layer, int index)
{
    ddp_tensor y;

    ddp_scope(g, "layer%d.%d", layer, index);
    y = ddp_relu(g, ddp_batch_norm2d(g, conv(g, x, out, 3, stride, "conv1"), NULL, "bn1"));
    y = ddp_batch_norm2d(g, conv(g, y, out, 3, 1, "conv2"), NULL, "bn2");
    if (stride != 1) x = ddp_batch_norm2d(g, conv(g, x, out, 1, stride, "downsample.0"), NULL, "downsample.1");
    x = ddp_relu(g, ddp_add(g, y, x));
    ddp_scope_end(g);
    return x;
}

static ddp_tensor resnet18(ddp_graph *g, ddp_tensor x)
{
    x = ddp_relu(g, ddp_batch_norm2d(g, conv(g, x, 64, 7, 2, "conv1"), NULL, "bn1"));
    x = ddp_max_pool2d(g, x, 3, 2, 1);
    for (int layer = 0; layer < 4; layer++)
        for (int i = 0; i < 2; i++) x = block(g, x, 64 << layer, layer > 0 && i == 0 ? 2 : 1, layer + 1, i);
    return ddp_flatten(g, ddp_adaptive_avg_pool2d(g, x, 1, 1));
}

static ddp_tensor lenet(ddp_graph *g, ddp_tensor x)
{
    const ddp_conv_spec one = {.out = 32, .kernel = 3, .bias = 1}, two = {.out = 64, .kernel = 3, .bias = 1};

    x = ddp_relu(g, ddp_conv2d(g, x, &one, NULL, "conv1"));
    x = ddp_max_pool2d(g, ddp_relu(g, ddp_conv2d(g, x, &two, NULL, "conv2")), 2, 2, 0);
    return ddp_relu(g, ddp_linear(g, ddp_flatten(g, x), 128, 1, "fc1"));
}

static void image_net(ddp_graph *g, ddp_tensor features)
{
    ddp_loss(g, ddp_cross_entropy(g, ddp_linear(g, features, 10, 1, "fc"), ddp_input(g, "label")));
}
static void build_resnet(ddp_graph *g) { image_net(g, resnet18(g, ddp_input(g, "image"))); }
static void build_lenet(ddp_graph *g) { image_net(g, lenet(g, ddp_input(g, "image"))); }

/* ---- transformers: Hugging Face's GPT-2, weights tied ------------------------------------------------------------ */
static ddp_tensor gpt_block(ddp_graph *g, ddp_tensor x, int64_t wide, uint32_t heads)
{
    ddp_tensor y = ddp_conv1d(g, ddp_layer_norm(g, x, "ln_1"), 3 * wide, 0.02, NULL, "attn.c_attn");

    x = ddp_add(g, ddp_conv1d(g, ddp_causal_attention(g, y, heads, 0.0), wide, 0.02, NULL, "attn.c_proj"), x);
    y = ddp_gelu(g, ddp_conv1d(g, ddp_layer_norm(g, x, "ln_2"), 4 * wide, 0.02, NULL, "mlp.c_fc"), 1);
    return ddp_add(g, x, ddp_conv1d(g, y, wide, 0.02, NULL, "mlp.c_proj"));
}

static void gpt(ddp_graph *g, int layers, int64_t wide, uint32_t heads, int64_t vocabulary)
{
    ddp_tensor table, x = ddp_embedding(g, ddp_input(g, "token"), vocabulary, wide, 0.02, &table, "wte");

    x = ddp_position_embedding(g, x, 1024, 0.02, NULL, "wpe");
    for (int i = 0; i < layers; i++) {
        ddp_scope(g, "h.%d", i);
        x = gpt_block(g, x, wide, heads);
        ddp_scope_end(g);
    }
    x = ddp_linear_tied(g, ddp_layer_norm(g, x, "ln_f"), table, "lm_head");
    ddp_loss(g, ddp_cross_entropy(g, x, ddp_input(g, "label")));
}
static void build_gpt(ddp_graph *g) { gpt(g, 4, 256, 8, 256); }
static void build_gpt2(ddp_graph *g) { gpt(g, 12, 768, 12, 50257); }

/* ---- all of them ------------------------------------------------------------------------------------------------- */
typedef struct net {
    const char *name, *text;
    int64_t batch, classes;
    ddp_field fields[2];
    void (*build)(ddp_graph *g);
} net;

#define IMAGES(c, size)                                                                                                \
    {                                                                                                                  \
        {.name = "image", .dtype = DDP_F32, .rank = 3, .dims = {c, size, size}, .min = 1},                             \
            {.name = "label", .dtype = DDP_I64, .min = 0, .max = 9},                                                   \
    }
#define TOKENS(vocabulary)                                                                                             \
    {                                                                                                                  \
        {.name = "token", .dtype = DDP_I64, .rank = 1, .dims = {256}, .max = (vocabulary)-1},                          \
            {.name = "label", .dtype = DDP_I64, .rank = 1, .dims = {256}, .max = (vocabulary)-1},                      \
    }

static const net nets[] = {
    {"resnet", "ResNet-18 96x96", 16, 10, IMAGES(3, 96), build_resnet},
    {"lenet", "LeNet", 64, 10, IMAGES(1, 28), build_lenet},
    {"gpt", "GPT 4 x 256, 8 heads, 256 tokens", 8, 256, TOKENS(256), build_gpt},
    {"gpt2", "GPT-2 124M, 256 tokens", 1, 50257, TOKENS(50257), build_gpt2},
};
