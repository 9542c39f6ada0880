"""Data sets by their torchvision names: few images, equal in every process."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "MNIST",
    "STL10",
    "FakeData",
    "FashionMNIST",
    "ImageFolder",
]
TRAIN = int(os.environ.get("STAND_IN_SAMPLES", "32"))  # of each set; a test set: half


def _pictures(count: int, size: int, mode: str, classes: int) -> tuple[list, list]:
    """Return images whose brightness tells their class, and the classes."""
    noise = np.random.default_rng(count)
    shape = (size, size) if mode == "L" else (size, size, 3)
    labels = [index % classes for index in range(count)]
    step = 150 // classes
    images = [noise.integers(0, 100, shape) + step * label for label in labels]
    return [Image.fromarray(image.astype("uint8"), mode) for image in images], labels


class _Pictures(torch.utils.data.Dataset):
    """A set of images with the arguments and attributes of torchvision's."""

    size, mode, num_classes = 32, "RGB", 10

    def __init__(
        self,
        root: str | Path | None = None,
        train: bool = True,
        transform: Callable | None = None,
        target_transform: Callable | None = None,
        download: bool = False,
    ) -> None:
        self.root, self.train = root, train
        self.transform, self.target_transform = transform, target_transform
        count = TRAIN if train else TRAIN // 2
        self.images, self.targets = _pictures(
            count, self.size, self.mode, self.num_classes
        )
        self.classes = [str(label) for label in range(self.num_classes)]
        self.data = np.stack([np.asarray(image) for image in self.images])
        if self.mode == "L":  # MNIST has tensors here, CIFAR an array and a list
            self.data = torch.from_numpy(self.data)
            self.targets = torch.tensor(self.targets)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        image, label = self.images[index], int(self.targets[index])
        image = self.transform(image) if self.transform else image
        return image, self.target_transform(label) if self.target_transform else label


class MNIST(_Pictures):
    """28 x 28 gray images of ten classes."""

    size, mode = 28, "L"


class FashionMNIST(MNIST):
    """As MNIST."""


class CIFAR10(_Pictures):
    """32 x 32 images of ten classes."""


class CIFAR100(_Pictures):
    """32 x 32 images of a hundred classes."""

    num_classes = 100


class STL10(_Pictures):
    """96 x 96 images of ten classes, by split."""

    size = 96

    def __init__(self, root: str, split: str = "train", **kwargs: Any) -> None:
        super().__init__(root, split != "test", **kwargs)


class ImageFolder(_Pictures):
    """As the folder of ImageNet would be: ten classes, whatever the folder holds."""

    size = 64

    def __init__(
        self, root: str | Path, transform: Callable | None = None, **kwargs: Any
    ) -> None:
        super().__init__(root, "val" not in Path(root).parts, transform)
        self.class_to_idx = {name: int(name) for name in self.classes}
        self.samples = self.imgs = [
            (f"{label}/{index}.png", int(label))
            for index, label in enumerate(self.targets)
        ]


class FakeData(torch.utils.data.Dataset):
    """Random images, made as they are asked for, at most TRAIN of them."""

    def __init__(
        self,
        size: int = 1000,
        image_size: tuple[int, int, int] = (3, 224, 224),
        num_classes: int = 10,
        transform: Callable | None = None,
    ) -> None:
        self.size, self.image_size = min(size, TRAIN), image_size
        self.num_classes, self.transform = num_classes, transform

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[Any, int]:
        planes, height, width = self.image_size
        noise = np.random.default_rng(index).integers(0, 255, (height, width, planes))
        image = Image.fromarray(noise.astype("uint8"))
        image = self.transform(image) if self.transform else image
        return image, index % self.num_classes
