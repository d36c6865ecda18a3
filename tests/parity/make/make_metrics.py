#!/usr/bin/env python3
"""Writes vectors/metrics.json: the metrics of an evaluation as scikit-learn gives them for the numbers of samples() and those of
the losses as PyTorch does. tests/integration/model/test_metrics.py lets `ddpengine eval` measure the same. Needs scikit-learn
and PyTorch:

    /usr/bin/python3 tests/parity/make/make_metrics.py"""
import json
import pathlib

OUT = pathlib.Path(__file__).resolve().parents[1] / "vectors/metrics.json"
SAMPLES, CLASSES, MANY, TARGETS = 103, 7, 30, 3


def numbers(seed, count):
    """From -4 to 4 in steps of 1/4096, which f32 holds."""
    out, x = [], seed
    for _ in range(count):
        x = x * 6364136223846793005 + 1442695040888963407 & 0xFFFFFFFFFFFFFFFF
        out.append((x >> 40 & 32767) / 4096 - 4)
    return out


def rows(flat, width):
    return [flat[i:i + width] for i in range(0, len(flat), width)]


def samples(classes):
    """Logits, and labels that are the largest logit in about half of the samples. The last class is never a label."""
    logits = rows(numbers(classes, SAMPLES * classes), classes)
    draws = [int((d + 4) * 512) for d in numbers(99 + classes, SAMPLES)]
    labels = [max(range(classes), key=lambda k: x[k]) if d % 2 else d // 2 % classes for x, d in zip(logits, draws)]
    return logits, [min(y, classes - 2) for y in labels]


def regression():
    """Predictions and targets far from 0, of which the last column is constant."""
    p, noise = rows(numbers(5, SAMPLES * TARGETS), TARGETS), rows(numbers(6, SAMPLES * TARGETS), TARGETS)
    return ([[x[0] + 1000, x[1], x[2]] for x in p],
            [[x[0] + 1000 + e[0] / 4, x[1] - e[1] / 8, 0.5] for x, e in zip(p, noise)])


def binary():
    p, noise = rows(numbers(7, SAMPLES * TARGETS), TARGETS), rows(numbers(8, SAMPLES * TARGETS), TARGETS)
    return p, [[float(x + e / 2 > 0) for x, e in zip(a, b)] for a, b in zip(p, noise)]


def classifier(classes):
    import numpy
    import torch
    from sklearn import metrics as sk

    logits, labels = samples(classes)
    x, y = numpy.array(logits), numpy.array(labels)
    predicted, all_classes = x.argmax(1), list(range(classes))
    return {"loss": float(torch.nn.functional.cross_entropy(torch.tensor(x), torch.tensor(y))),
            "accuracy": float(sk.accuracy_score(y, predicted)),
            "top5": float(sk.top_k_accuracy_score(y, x, k=5, labels=all_classes)),
            "f1": float(sk.f1_score(y, predicted, average="macro")),
            "f1_by_class": [float(v) for v in sk.f1_score(y, predicted, average=None, labels=all_classes)],
            "confusion": sk.confusion_matrix(y, predicted, labels=all_classes).tolist()}


def main():
    import numpy
    import sklearn
    import torch
    from sklearn import metrics as sk

    p, t = (numpy.array(v) for v in regression())
    logits, truth = (numpy.array(v) for v in binary())
    flat, hits = truth.ravel() > 0.5, logits.ravel() > 0
    f = torch.nn.functional
    tensors = {"p": torch.tensor(p), "t": torch.tensor(t)}
    out = {
        "versions": {"scikit-learn": sklearn.__version__, "torch": torch.__version__},
        "few": classifier(CLASSES), "many": classifier(MANY),
        "regression": {"mae": float(sk.mean_absolute_error(t, p)), "r2": float(sk.r2_score(t, p)),
                       "mse": float(f.mse_loss(tensors["p"], tensors["t"])), "l1": float(f.l1_loss(tensors["p"], tensors["t"])),
                       "smooth_l1": float(f.smooth_l1_loss(tensors["p"], tensors["t"], beta=0.5))},
        "binary": {"loss": float(f.binary_cross_entropy_with_logits(torch.tensor(logits), torch.tensor(truth))),
                   "accuracy": float(sk.accuracy_score(flat, hits)), "f1": float(sk.f1_score(flat, hits, average="macro")),
                   "confusion": sk.confusion_matrix(flat, hits).tolist()},
    }
    OUT.write_text(json.dumps(out) + "\n")


if __name__ == "__main__":
    main()
