"""Muon, an optimizer that needs whole matrices.

Chapter 12 explains what goes wrong if it gets parts of them.
"""

import torch


def orthogonal(x: torch.Tensor) -> torch.Tensor:
    """Return the nearest orthogonal matrices to x (K, m, n), roughly.

    Five steps of Newton-Schulz put each singular value between 0.7 and 1.2.
    """
    wide = x.shape[-2] <= x.shape[-1]
    x = x if wide else x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = 3.4445 * x + (2.0315 * gram @ gram - 4.775 * gram) @ x
    return x if wide else x.mT


class Muon(torch.optim.Optimizer):
    """Replace momentum with an orthogonal matrix, and step along it."""

    def __init__(self, params: list, lr=0.02, momentum=0.95) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure=None) -> None:
        """Update each matrix."""
        for p in self.param_groups[0]["params"]:
            self.update(p, p[None], p.grad[None])

    def update(self, key, weights: torch.Tensor, grads: torch.Tensor) -> None:
        """Update weights (K, m, n); their momentum is stored under a key."""
        how, state = self.param_groups[0], self.state[key]
        if not state:
            state["momentum"] = torch.zeros_like(grads)
        state["momentum"].lerp_(grads, 1 - how["momentum"])
        ahead = grads.lerp(state["momentum"], how["momentum"])  # Nesterov
        size = max(1, weights.shape[-2] / weights.shape[-1]) ** 0.5
        weights -= how["lr"] * size * orthogonal(ahead)
