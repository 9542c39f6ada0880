"""One process and all its GPUs, by nn.DataParallel, as older scripts do it."""

import torch
from torch import nn

if not torch.cuda.is_available():
    raise SystemExit("this script needs GPUs")
device = torch.device("cuda:0")
print("Let's use", torch.cuda.device_count(), "GPUs!")
for index in range(torch.cuda.device_count()):
    properties = torch.cuda.get_device_properties(index)
    print(properties.name, properties.total_memory // 2**20, "MiB")
torch.manual_seed(0)
torch.cuda.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 2))
model = nn.DataParallel(model).to(device)
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-2)
for _ in range(6):
    x = torch.randn(32, 8).to(device)
    y = (x.sum(1) > 0).long()
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
torch.save(model.module.state_dict(), "model.pth")
again = torch.load("model.pth", weights_only=True)
assert all(tensor.is_cuda for tensor in again.values())
print(f"loss {loss.item():.3f}")
