"""The models of models/*.c in plain PyTorch: names, shapes and draws of the constructors as theirs. make_models.py proves the
ones that torchvision and transformers have against these libraries; torch_train.py trains them.

    model = build("resnet", stem="cifar", width=8, classes=10)      # the options of [model.resnet]
    logits = model(image)"""
import math

import torch
import torch.nn.functional as F
from torch import nn


class LeNet(nn.Module):
    """PyTorch's tutorials, "Training with PyTorch" and "Neural Networks"."""

    def __init__(self, channels, size, classes):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        side = ((size - 4) // 2 - 4) // 2
        self.fc1 = nn.Linear(16 * side * side, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, classes)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.fc1(torch.flatten(x, 1)))
        return self.fc3(F.relu(self.fc2(x)))


class TwoConv(nn.Module):
    """pytorch/examples, mnist/main.py, without its log_softmax."""

    def __init__(self, channels, size, classes, dropout1, dropout2):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 32, 3, 1)
        self.conv2 = nn.Conv2d(32, 64, 3, 1)
        self.dropout1 = nn.Dropout(dropout1)
        self.dropout2 = nn.Dropout(dropout2)
        self.fc1 = nn.Linear(64 * ((size - 4) // 2) ** 2, 128)
        self.fc2 = nn.Linear(128, classes)

    def forward(self, x):
        x = F.relu(self.conv2(F.relu(self.conv1(x))))
        x = self.dropout1(F.max_pool2d(x, 2))
        x = F.relu(self.fc1(torch.flatten(x, 1)))
        return self.fc2(self.dropout2(x))


class BasicBlock(nn.Module):
    def __init__(self, before, width, stride):
        super().__init__()
        down = None
        if stride != 1 or before != width:
            down = nn.Sequential(nn.Conv2d(before, width, 1, stride, bias=False), nn.BatchNorm2d(width))
        self.conv1 = nn.Conv2d(before, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = down

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Module):
    """torchvision.models.resnet18 and resnet34, with a width and a stem for small images."""

    def __init__(self, channels, depth, stem, width, classes):
        super().__init__()
        self.pool = stem == "imagenet"
        self.conv1 = nn.Conv2d(channels, width, 7, 2, 3, bias=False) if self.pool else \
            nn.Conv2d(channels, width, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        before = width
        for layer, blocks in enumerate((2, 2, 2, 2) if depth == 18 else (3, 4, 6, 3)):
            out = width << layer
            made = [BasicBlock(before if i == 0 else out, out, 2 if i == 0 and layer > 0 else 1) for i in range(blocks)]
            setattr(self, f"layer{layer + 1}", nn.Sequential(*made))
            before = out
        self.fc = nn.Linear(before, classes)
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        if self.pool:
            x = F.max_pool2d(x, 3, 2, 1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


class Conv1D(nn.Module):
    def __init__(self, before, out):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(before, out))
        self.bias = nn.Parameter(torch.zeros(out))
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, x):
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(*x.shape[:-1], -1)


class Attention(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.c_attn = Conv1D(width, 3 * width)
        self.c_proj = Conv1D(width, width)

    def forward(self, x):
        n, t, e = x.shape
        q, k, v = (y.view(n, t, self.heads, e // self.heads).transpose(1, 2) for y in self.c_attn(x).split(e, 2))
        w = q @ k.transpose(2, 3) / math.sqrt(e // self.heads)
        w = w.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), float("-inf")).softmax(3)
        y = F.dropout(w, self.dropout, self.training) @ v
        return F.dropout(self.c_proj(y.transpose(1, 2).reshape(n, t, e)), self.dropout, self.training)


class Mlp(nn.Module):
    def __init__(self, width, dropout):
        super().__init__()
        self.dropout = dropout
        self.c_fc = Conv1D(width, 4 * width)
        self.c_proj = Conv1D(4 * width, width)

    def forward(self, x):
        return F.dropout(self.c_proj(F.gelu(self.c_fc(x), approximate="tanh")), self.dropout, self.training)


class Block(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.attn = Attention(width, heads, dropout)
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = Mlp(width, dropout)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Transformer(nn.Module):
    def __init__(self, layers, heads, width, context, rows, dropout):
        super().__init__()
        self.dropout = dropout
        self.wte = nn.Embedding(rows, width)
        self.wpe = nn.Embedding(context, width)
        self.h = nn.ModuleList([Block(width, heads, dropout) for _ in range(layers)])
        self.ln_f = nn.LayerNorm(width)

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        x = F.dropout(x, self.dropout, self.training)
        for block in self.h:
            x = block(x)
        return self.ln_f(x)


class Gpt2(nn.Module):
    """transformers' GPT2LMHeadModel; its lm_head.weight is transformer.wte.weight and not stored."""

    def __init__(self, layers, heads, width, context, rows, dropout):
        super().__init__()
        self.transformer = Transformer(layers, heads, width, context, rows, dropout)
        for m in self.modules():  # _init_weights, in the order of apply(): children before their parent
            if isinstance(m, nn.Embedding):
                m.weight.data.normal_(0.0, 0.02)
            elif isinstance(m, (Attention, Mlp)):
                for child in m.children():
                    child.weight.data.normal_(0.0, 0.02)
                m.c_proj.weight.data.normal_(0.0, 0.02 / math.sqrt(2 * layers))

    def forward(self, tokens):
        return F.linear(self.transformer(tokens), self.transformer.wte.weight)


PRESETS = {"gpt2": (12, 12, 768, 1024, 50257), "gpt2-medium": (24, 16, 1024, 1024, 50257), "bytes": (4, 8, 256, 256, 256)}


def build(plugin, channels=3, size=28, **options):
    """`channels` and `size` are those of the images; the rest as in the plugin's section."""
    o = options.get
    classes = o("classes", 1000 if plugin == "resnet" else 10)
    if plugin == "lenet" and o("variant", "lenet") == "lenet":
        return LeNet(channels, size, classes)
    if plugin == "lenet":
        return TwoConv(channels, size, classes, o("dropout1", 0.25), o("dropout2", 0.5))
    if plugin == "resnet":
        return ResNet(channels, o("depth", 18), o("stem", "imagenet"), o("width", 64), classes)
    preset = dict(zip(("layers", "heads", "width", "context", "vocabulary"), PRESETS[o("preset", "gpt2")], strict=True))
    c = {k: o(k) or v for k, v in preset.items()}
    return Gpt2(c["layers"], c["heads"], c["width"], c["context"], o("padded_vocabulary") or c["vocabulary"], o("dropout", 0.0))


def loss_of(logits, target):
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), target.reshape(-1))
