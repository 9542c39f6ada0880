"""Start here - Train a small network on one device.

Run it (no GPU needed):
    python scripts/start_single.py
"""

import time

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

torch.manual_seed(0)
x, y = map(torch.as_tensor, load_digits(return_X_y=True))
data = TensorDataset(x.float() / 16, y)  # 1797 images of 64 pixels
net = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10))
net = net.to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
loader = DataLoader(data, batch_size=128, shuffle=True, drop_last=True)

for epoch in range(5):
    start = time.perf_counter()
    for x, y in loader:  # (128, 64), (128,)
        loss = nn.functional.cross_entropy(net(x.to(device)), y.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    rate = len(loader) * 128 / (time.perf_counter() - start)
    print(f"{epoch=} loss={loss.item():.4f} {rate:.0f} samples/s")

torch.save(net.state_dict(), "start.pt")
