"""A loss scaler that all ranks agree on.

Ranks: 2, 4
Minutes: 20

The ranks hold *different* parts of one model, and each has its own optimizer for its
part. `backward` has run on the loss times `state["scale"]`, so the gradients are still
scaled; some are None. Write one function that does what `scaler.step` and
`scaler.update` do:

* Divide this rank's gradients by the scale, in place.
* If all gradients of *all ranks* are finite, call `optimizer.step()`. Otherwise nobody
  steps.
* After a skipped step, halve the scale. After `interval` steps in a row without a skip,
  double it. `state["good"]` counts these steps, and starts again at 0 whenever the
  scale changes.

Return whether the step was taken. `state` is a dict with the numbers `scale` (a float)
and `good` (an int), which you change in place.

Hint 1: Rank 1 finds an inf. Which rank has to know, and which ranks have to ask?
Hint 2: A flag of one number, reduced with `MAX`, tells everybody. Every rank must bring
one, also a rank that has no gradients at all.
Hint 3: `bad = torch.zeros(1)`, then for each gradient `bad += not
gradient.isfinite().all()`, then `dist.all_reduce(bad, op=dist.ReduceOp.MAX)`.
"""


# %% solution
def ex10_2(optimizer, state, interval):
    """Unscale, step unless a gradient of any rank overflowed, and set the scale."""
    bad = torch.zeros(1)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                parameter.grad /= state["scale"]
                bad += not parameter.grad.isfinite().all()
    dist.all_reduce(bad, op=dist.ReduceOp.MAX)
    if bad:
        state["scale"], state["good"] = state["scale"] / 2, 0
        return False
    optimizer.step()
    state["good"] += 1
    if state["good"] == interval:
        state["scale"], state["good"] = state["scale"] * 2, 0
    return True


# %% check
INF, NAN, HUGE, INTERVAL = float("inf"), float("nan"), 3e38, 3
STORIES = {  # by step: the gradient's last number on rank 0, rank 1, ...; None: no grad
    "all is finite": [[1, 1, 1, 1]],
    "large numbers whose sum overflows": [[HUGE, 1, HUGE, 1]],
    "inf on the last rank": [[1, INF, 1, INF]],
    "-inf on rank 0": [[-INF, 1, 1, 1]],
    "NaN on one rank": [[1, NAN, 1, 1]],
    "a rank without gradients": [[1, None, 1, None]],
    "overflow beside a rank without gradients": [[None, INF, None, INF]],
    "three good steps in a row": [[1] * 4] * 4,
    "a bad step between good ones": [[1] * 4] * 2 + [[INF, 1, 1, 1]] + [[1] * 4] * 2,
    "two bad steps, then four good ones": [[1, 1, 1, INF], [NAN] * 4] + [[1] * 4] * 4,
}


def check(answer, case):
    ran = []  # one for each step of an optimizer
    spy(torch.optim.SGD, "step", lambda *args, **kwargs: ran.append(1))
    for name, steps in case.each(STORIES):
        # The last parameter never has a gradient.
        weights, bias, idle = (nn.Parameter(torch.ones(n)) for n in (3 + rank, 2, 1))
        groups = [{"params": [weights, idle]}, {"params": [bias], "lr": 0.25}]
        optimizer, state = torch.optim.SGD(groups, lr=0.5), {"scale": 64.0, "good": 0}
        scale, good, true = 64.0, 0, torch.arange(3.0 + rank)
        for number, row in enumerate(steps, 1):
            row = row[:world_size]
            taken = all(v is None or abs(v) < INF for v in row)
            before = [w.detach().clone() for w in (weights, bias)]
            weights.grad = bias.grad = None
            if row[rank] is not None:
                weights.grad, bias.grad = true * scale, torch.full((2,), 2.0) * scale
                bias.grad[-1] = row[rank]
            ran.clear()
            got = answer(optimizer, state, INTERVAL)
            where = f"rank {rank}, step {number}, where the ranks have {row}: "
            if (times := len(ran)) != taken:
                did = f"ran {times} times" if times else "did not run"
                should = "should have run once" if taken else "should not have run"
                raise Wrong(f"{where}optimizer.step {did}; it {should}.")
            if got is None or bool(got) != taken:
                raise Wrong(f"{where}it returned {got!r}; it should be {taken}.")
            if row[rank] is not None:
                compare(f"{where}the gradient", weights.grad, true, {
                    "It is still scaled.": true * scale,
                    "It was divided twice.": true / scale,
                    "It was divided by the new scale.": true * 2,
                    "It was divided by twice the scale.": true / 2,
                })  # fmt: skip
                moved = [old - w.detach() for old, w in zip(before, (weights, bias))]
                expect(f"{where}the weights' step", moved[0], taken * 0.5 * true)
                other = moved[1][0].item()
                expect(f"{where}the bias' step", other, taken * 0.5, atol=1e-6)
            old, good = scale, good + 1 if taken else 0
            scale = scale if taken else scale / 2
            if good == INTERVAL:
                scale, good = scale * 2, 0
            compare(f"{where}the scale", float(state["scale"]), scale, {
                "It stays as it was.": old,
                "Only a step without overflow may raise it, after 3 in a row.": old * 2,
            })  # fmt: skip
            mistakes = {"It is not set back.": good + INTERVAL}
            compare(f"{where}state['good']", int(state["good"]), good, mistakes)
