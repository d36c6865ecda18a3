/* device_torch.h -- parameters after three updates, from PyTorch 1.13.0a0 on a CPU with AVX2, as the bits of floats.
 *
 * Parameter i starts at (float)(i - 11) * 0.37f; gradient i of step s = 1, 2, 3 is (float)((7 i + 3 s) % 11 - 5) * 0.013f. */
#ifndef DDP_TEST_DEVICE_TORCH_H
#define DDP_TEST_DEVICE_TORCH_H

#define TORCH_ELEMENTS 32

typedef struct torch_case {
    const char *name;
    ddp_optim optim;
    uint32_t after[TORCH_ELEMENTS];
} torch_case;

static const torch_case torch_cases[] = {
    {"SGD, plain",
     {.algorithm = DDP_OPTIM_SGD, .lr = 0.1, .weight_decay = 0.0, .grad_scale = 1, .momentum = 0.0, .nesterov = 0},
     {0xc0825d63, 0xc06cf766, 0xc0553405, 0xc03d70a4, 0xc025ad43, 0xc00de9e2, 0xbfec4d01, 0xbfbcc640,
      0xbf8f1412, 0xbf3b7175, 0xbec01a38, 0xbb7f9725, 0x3ebc1bda, 0x3f3d1b72, 0x3f8e147b, 0x3fbd9b3d,
      0x3fed21ff, 0x400e5461, 0x402617c2, 0x403cf0d9, 0x40559e83, 0x406c779b, 0x40821d7f, 0x408dff2f,
      0x4099e0df, 0x40a5c290, 0x40b1a440, 0x40bd85f0, 0x40c967a0, 0x40d54951, 0x40e0b5dd, 0x40ed0cb3}},
    {"SGD, momentum, weight decay",
     {.algorithm = DDP_OPTIM_SGD, .lr = 0.1, .weight_decay = 0.001, .grad_scale = 1, .momentum = 0.9, .nesterov = 0},
     {0xc0822fdc, 0xc06d51f6, 0xc055867f, 0xc03ce833, 0xc025da72, 0xc00e0efb, 0xbfeae15b, 0xbfbcc5da,
      0xbf8f0383, 0xbf37e4a7, 0xbec54450, 0xba23cd8b, 0x3eb81c1f, 0x3f3b3bea, 0x3f8eda8f, 0x3fbcf611,
      0x3fec8cfd, 0x400ee4cc, 0x4025f28d, 0x403cd3b8, 0x40565c50, 0x406bacf0, 0x4082259f, 0x408dac7e,
      0x4099923a, 0x40a5e161, 0x40b16841, 0x40bd4dfb, 0x40c99d23, 0x40d52402, 0x40e09499, 0x40ed58e5}},
    {"SGD, nesterov",
     {.algorithm = DDP_OPTIM_SGD, .lr = 0.05, .weight_decay = 0.01, .grad_scale = 1, .momentum = 0.8, .nesterov = 1},
     {0xc081d994, 0xc06c420b, 0xc0549546, 0xc03c9dba, 0xc0252c9e, 0xc00d7fda, 0xbfeb109a, 0xbfbc2e62,
      0xbf8e7a93, 0xbf39cb83, 0xbec0fb4c, 0xbb1f73e2, 0x3eba49fc, 0x3f3bd80e, 0x3f8ddb20, 0x3fbcbd59,
      0x3fec16e0, 0x400e02fd, 0x4025741a, 0x403c4e00, 0x40551868, 0x406b6be0, 0x4081b1b6, 0x408d6a45,
      0x409940a7, 0x40a53c6d, 0x40b0f4fb, 0x40bccb5d, 0x40c8c723, 0x40d47fb1, 0x40dfeca5, 0x40ec51da}},
    {"Adam",
     {.algorithm = DDP_OPTIM_ADAM,
      .lr = 0.001,
      .weight_decay = 0.0,
      .grad_scale = 1,
      .beta1 = 0.9,
      .beta2 = 0.999,
      .eps = 1e-08},
     {0xc08236d0, 0xc06ce2bf, 0xc0553e56, 0xc03d56b0, 0xc025cf9a, 0xc00e1c8b, 0xbfec8708, 0xbfbd79f6,
      0xbf8e169a, 0xbf3ccf1c, 0xbebe9947, 0x3a541366, 0x3ebcc111, 0x3f3cf229, 0x3f8e4865, 0x3fbd568f,
      0x3fecbcad, 0x400e375d, 0x4025bde7, 0x403d6f93, 0x4055471a, 0x406ca7b9, 0x40824412, 0x408e0982,
      0x4099dbb5, 0x40a5cf8a, 0x40b19314, 0x40bd6c9c, 0x40c9591f, 0x40d51c64, 0x40e0f53b, 0x40ece0fd}},
    {"Adam, weight decay",
     {.algorithm = DDP_OPTIM_ADAM,
      .lr = 0.03,
      .weight_decay = 0.02,
      .grad_scale = 1,
      .beta1 = 0.8,
      .beta2 = 0.95,
      .eps = 1e-06},
     {0xc07f1d2e, 0xc06799e5, 0xc04ff396, 0xc038288e, 0xc0248cdb, 0xc0092cca, 0xbfe278b7, 0xbfbb77b2,
      0xbf896230, 0xbf297491, 0xbedc8630, 0x3c9fb253, 0x3ea650cc, 0x3f2c3b34, 0x3f8e33b5, 0x3fb679ce,
      0x3fe388b5, 0x400d4232, 0x4021cedb, 0x4037bc53, 0x404ff97b, 0x40675016, 0x407ec091, 0x408b75e8,
      0x4097284f, 0x40a2e353, 0x40aef2c0, 0x40baa988, 0x40c666fa, 0x40d2711a, 0x40de11bf, 0x40e9eb0b}},
    {"AdamW",
     {.algorithm = DDP_OPTIM_ADAMW,
      .lr = 0.01,
      .weight_decay = 0.1,
      .grad_scale = 1,
      .beta1 = 0.9,
      .beta2 = 0.999,
      .eps = 1e-08},
     {0xc081976e, 0xc06cf23b, 0xc055b6f1, 0xc03bdc2f, 0xc025c57d, 0xc00df7fb, 0xbfe95e5f, 0xbfbd3bf1,
      0xbf8dbd3d, 0xbf3691e7, 0xbec871d3, 0x3c042d1a, 0x3eb6066d, 0x3f37f05b, 0x3f8fadb5, 0x3fbbdb18,
      0x3feb761b, 0x400f03da, 0x40251511, 0x403cd46a, 0x40560e8e, 0x406aa4cf, 0x40821b9b, 0x408d39eb,
      0x4098d78f, 0x40a5c4f3, 0x40b0d04b, 0x40bcb70a, 0x40c95b71, 0x40d4640b, 0x40e043b9, 0x40ece0cc}},
};

#endif
