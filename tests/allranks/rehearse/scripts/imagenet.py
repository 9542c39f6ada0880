"""An image classifier as PyTorch's ImageNet example trains it, with its habits.

But for one: it saves the keys of the model, as a rehearsal finds those of DDP.
"""

import argparse
import os
import time

import torch
import torch.backends.cudnn as cudnn
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", default=2, type=int)
parser.add_argument("--batch-size", default=16, type=int)
parser.add_argument("--workers", default=2, type=int)


class Images(Dataset):
    """Images whose class is the brightest of three channels."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        image = torch.randn(3, 8, 8, generator=torch.Generator().manual_seed(index))
        return image, image.mean((1, 2)).argmax()


def main():
    args = parser.parse_args()
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["MASTER_PORT"] = str(20000 + os.getpid() % 10000)
    gpus = torch.cuda.device_count()
    mp.spawn(train, nprocs=gpus, args=(gpus, args))


def train(gpu, gpus, args):
    dist.init_process_group(backend="nccl", world_size=gpus, rank=gpu)
    torch.cuda.set_device(gpu)
    cudnn.benchmark = True
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 3),
    )
    model = nn.SyncBatchNorm.convert_sync_batchnorm(model).cuda(gpu)
    model = nn.parallel.DistributedDataParallel(model, device_ids=[gpu])
    criterion = nn.CrossEntropyLoss().cuda(gpu)
    optimizer = torch.optim.SGD(
        model.parameters(), 0.05, momentum=0.9, weight_decay=1e-4, nesterov=True
    )
    scheduler = StepLR(optimizer, step_size=1, gamma=0.5)
    scaler = torch.amp.GradScaler("cuda", init_scale=128.0)
    data = Images()
    sampler = DistributedSampler(data)
    loader = DataLoader(
        data,
        args.batch_size,
        sampler=sampler,
        num_workers=args.workers,
        pin_memory=True,
        persistent_workers=True,
    )
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        model.train()
        start.record()
        began = time.time()
        for images, target in loader:
            images = images.cuda(gpu, non_blocking=True)
            images = images.to(memory_format=torch.channels_last)
            target = target.cuda(gpu, non_blocking=True)
            with torch.autocast(device_type="cuda", dtype=torch.float16):
                loss = criterion(model(images), target)
            optimizer.zero_grad(set_to_none=True)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        scheduler.step()
        end.record()
        torch.cuda.synchronize()
        assert start.elapsed_time(end) >= 0 and time.time() >= began
        right = accuracy(model, data, gpu)
        if gpu == 0:
            print(f"epoch {epoch}: loss {loss.item():.3f}, accuracy {right:.2f}")
            torch.save(
                {
                    "epoch": epoch,
                    "model": model.module.state_dict(),
                    "scaler": scaler.state_dict(),
                },
                "checkpoint.pth.tar",
            )
    dist.barrier()
    place = f"cuda:{gpu}"
    checkpoint = torch.load("checkpoint.pth.tar", map_location=place, weights_only=True)
    assert {str(t.device) for t in checkpoint["model"].values()} == {place}
    model.module.load_state_dict(checkpoint["model"])
    dist.destroy_process_group()


@torch.no_grad()
def accuracy(model, data, gpu):
    """Return the share of images that all ranks together classify well."""
    model.eval()
    mine = range(gpu, len(data), dist.get_world_size())
    images, target = zip(*(data[index] for index in mine), strict=True)
    output = model(torch.stack(images).cuda(gpu))
    right = (output.topk(1).indices.flatten() == torch.stack(target).cuda(gpu)).sum()
    total = torch.tensor([right, len(mine)], dtype=torch.float32, device=gpu)
    dist.all_reduce(total, op=dist.ReduceOp.SUM)
    return (total[0] / total[1]).item()


if __name__ == "__main__":
    main()
