"""One worker of torchrun for beside.py: DistributedDataParallel over gloo, a checkpoint every 100 steps into the folder that is
given, from which all start after a restart. Prints "rank R pid P", and of rank 0 "step N of P" every 10 steps and after each
start."""
import os
import pathlib
import sys

import torch
import torch.distributed as dist

STEPS, EVERY, TELL = 100000, 100, 10


def main():
    rank = int(os.environ["RANK"])
    saved = pathlib.Path(sys.argv[1]) / "saved.pt"
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    model = torch.nn.Sequential(torch.nn.Linear(12, 128), torch.nn.ReLU(), torch.nn.Linear(128, 128), torch.nn.ReLU(), torch.nn.Linear(128, 4))
    begin = 0
    if saved.exists():
        state = torch.load(saved)
        model.load_state_dict(state["model"])
        begin = state["step"]
    model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    if begin > 0:
        optimizer.load_state_dict(state["optimizer"])
    print(f"rank {rank} pid {os.getpid()}", flush=True)
    for step in range(begin + 1, STEPS + 1):
        x, y = torch.randn(16, 12), torch.randint(0, 4, (16,))
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        if rank == 0 and (step == begin + 1 or step % TELL == 0):
            print(f"step {step} of {os.getpid()}", flush=True)
        if rank == 0 and step % EVERY == 0:
            torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, f"{saved}.new")
            os.replace(f"{saved}.new", saved)
    return 0


if __name__ == "__main__":
    sys.exit(main())
