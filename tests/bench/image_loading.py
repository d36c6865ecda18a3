#!/usr/bin/env python3
"""Images a second that one core makes of a folder of photographs, against torchvision: its own decode_jpeg or Pillow, transforms
v2 on tensors or on Pillow's images, whichever is the fastest. Both sides make the same batches of 64: crop, flip, / 255, mean,
std, float32, (N, 3, 224, 224). The clock is the thread's processor time, so that a busy machine does not count; the DataLoader
has num_workers=0, for the same work in a worker costs more: the batch goes through a pipe and shared memory as well.

    make tests/bench/bench_images && python3 tests/bench/image_loading.py FOLDER [--rounds 5] [--seconds 3]

FOLDER holds a folder for each class. Takes turns; prints the median and the spread of each, and decides nothing. Needs torch and
torchvision."""
import argparse
import os
import statistics
import subprocess
import sys
import time

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
HOW = ("center", "shorter", "resized")


def transforms(how, decoder):
    import torch
    from torchvision.transforms import v2
    first = {"center": [v2.CenterCrop(224)], "shorter": [v2.Resize(256, antialias=True), v2.CenterCrop(224)],
             "resized": [v2.RandomResizedCrop(224, antialias=True), v2.RandomHorizontalFlip()]}[how]
    image = [v2.PILToTensor()] if decoder == "pillow" else []
    if decoder == "pillow_resize":
        return v2.Compose([*first, v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)])
    return v2.Compose([*image, *first, v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)])


def torchvision_side(folder, how, decoder, seconds):
    import torch
    from torchvision.datasets import ImageFolder
    from torchvision.datasets.folder import default_loader
    from torchvision.io import ImageReadMode, decode_jpeg, read_file
    torch.set_num_threads(1)

    def fast(path):
        return decode_jpeg(read_file(path), mode=ImageReadMode.RGB)

    data = ImageFolder(folder, transforms(how, decoder), loader=default_loader if "pillow" in decoder else fast)
    loader = torch.utils.data.DataLoader(data, batch_size=64, shuffle=True)
    next(iter(loader))  # what is loaded or compiled by the first batch does not count
    made, begin = 0, time.thread_time()
    while time.thread_time() - begin < seconds:
        for images, _ in loader:
            made += len(images)
            if time.thread_time() - begin >= seconds:
                break
    print(made / (time.thread_time() - begin))


def run(command):
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--seconds", type=float, default=3)
    p.add_argument("--decoders", default="decode_jpeg,pillow,pillow_resize", help="of torchvision's side")
    p.add_argument("--side", nargs=2, help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.side:
        torchvision_side(a.folder, a.side[0], a.side[1], a.seconds)
        return
    build = os.environ.get("DDP_BUILDDIR", ".")
    pin = ["taskset", "-c", str(max(os.sched_getaffinity(0)))]
    for how in HOW:
        ours = {"ddpengine": [how], "ddpengine dct_scale": [how, "dct"]}
        theirs = a.decoders.split(",")
        results = {}
        for _ in range(a.rounds):
            for name, args in ours.items():
                results.setdefault(name, []).append(
                    run([*pin, f"{build}/tests/bench/bench_images", a.folder, *args, str(a.seconds)]))
            for decoder in theirs:
                results.setdefault(f"torchvision {decoder}", []).append(
                    run([*pin, sys.executable, __file__, a.folder, "--seconds", str(a.seconds), "--side", how, decoder]))
        best = max((statistics.median(v), k) for k, v in results.items() if k.startswith("torchvision"))
        for name, v in results.items():
            m = statistics.median(v)
            print(f"{how:8} {name:36} {m:8.1f} images/s ({min(v):.1f} to {max(v):.1f}), {m / best[0]:.2f}x")


if __name__ == "__main__":
    main()
