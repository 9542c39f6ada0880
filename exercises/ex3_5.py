"""Resume to the last bit.

Ranks: 2
Minutes: 40
Level: hard

A job was stopped in the middle of an epoch. When it resumes, it must go on as if
nothing had happened: each loss on each rank is the same to the bit.

A `run` has `model` (with dropout), `optimizer` (with momentum), `scheduler`, `epoch`,
and `step`, the number of batches that are done in this epoch. It draws random numbers
from torch (for dropout) and from Python's `random` (to flip some batches). Each rank
draws its own. The shuffling depends on the epoch alone.

Your function is called on all ranks, in two ways. `ex3_5(run)` returns a checkpoint.
`ex3_5(run, saved)` brings a fresh run to exactly that point. Between the two calls,

- only **rank 0's** checkpoint is written, and every rank gets it back;
- it is written with `torch.save` **later**, when training has gone on, so it must not
  share memory with the run;
- it is read with `torch.load(path)`, which accepts tensors, numbers, strings, lists,
  tuples and dictionaries, but no classes of yours.

Hint 1: List everything that the next step depends on. Which of these differ from rank
    to rank, and how do they get into rank 0's file?
Hint 2: Four `state_dict`s or numbers per rank 0, and two states of random numbers per
    rank: `dist.all_gather_object` brings those together. `state_dict()` returns the
    tensors themselves; `copy.deepcopy` copies them.
Hint 3: `torch.get_rng_state()`, `random.getstate()`; then `torch.set_rng_state(...)`
    and `random.setstate(...)` with the entry of `dist.get_rank()`.
"""


# %% solution
def ex3_5(run, saved=None):
    """Return a checkpoint of `run`; or, if there is one, bring `run` there."""
    parts = {"model": run.model, "optim": run.optimizer, "schedule": run.scheduler}
    if saved is None:
        rng = [None] * dist.get_world_size()
        dist.all_gather_object(rng, (torch.get_rng_state(), random.getstate()))
        states = {name: copy.deepcopy(p.state_dict()) for name, p in parts.items()}
        return states | {"rng": rng, "epoch": run.epoch, "step": run.step}
    for name, part in parts.items():
        part.load_state_dict(saved[name])
    run.epoch, run.step = saved["epoch"], saved["step"]
    own = saved["rng"][dist.get_rank()]
    torch.set_rng_state(own[0])
    random.setstate(own[1])


# %% check
from torch.utils.data import DistributedSampler

X = torch.randn(36, 4, generator=dice(5))
BATCH, FORWARD = 3, 5  # samples per rank and step; steps compared
CASES = {"in the middle of an epoch": 9, "at the end of an epoch": 12}
CASES |= {"before the first step": 0}  # steps before the checkpoint


class Run:
    """A training run of few steps per epoch; another one for each seed."""

    def __init__(self, seed):
        torch.manual_seed(seed)  # the same weights on all ranks
        layers = nn.Linear(4, 6), nn.Dropout(0.4), nn.Linear(6, 1)
        self.model = nn.Sequential(*layers)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1, momentum=0.9)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 4, gamma=0.5)
        self.sampler = DistributedSampler(X)
        self.epoch = self.step = 0
        torch.manual_seed(100 * seed + rank)
        random.seed(100 * seed + rank)

    def train(self, num_steps):
        """Do some steps, over the ends of epochs; return the losses of this rank."""
        losses = []
        for _ in range(num_steps):
            self.sampler.set_epoch(self.epoch)
            own = list(self.sampler)
            x = X[own[self.step * BATCH : (self.step + 1) * BATCH]]
            x = -x if random.random() < 0.5 else x
            loss = (self.model(x) - x.sum(1, keepdim=True)).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            for p in self.model.parameters():
                dist.all_reduce(p.grad)
                p.grad /= world_size
            self.optimizer.step()
            self.scheduler.step()
            losses.append(loss.item())
            self.step += 1
            if self.step * BATCH >= len(own):
                self.epoch, self.step = self.epoch + 1, 0
        return losses


def check(answer, case):
    for name, before in case.each(CASES):
        resume(answer, Run(1), before, "first.pt")
    case("a run that was resumed itself")
    fresh = resume(answer, Run(1), 4, "first.pt")
    resume(answer, fresh, 3, "second.pt")


def resume(answer, run, before, path):
    """Train, take a checkpoint, train on; a fresh run must repeat the rest."""
    run.train(before)
    facts, saved = describe(run), answer(run)
    if saved is None and rank == 0:
        raise Wrong("the checkpoint of rank 0 is None.")
    expect_same("after you took a checkpoint, the run itself has another", run, facts)
    taken, losses = copy.deepcopy(saved), run.train(FORWARD)
    if rank == 0:
        torch.save(saved, path)
    dist.barrier()
    try:
        saved = torch.load(path)
    except Exception as error:
        text = str(error).split("\n")[0].partition(". This file")[0]
        raise Wrong(f"torch.load refuses the file: {text[:160]}") from None
    try:
        expect("it", saved, taken) if rank == 0 else None
    except Wrong as error:
        raise Wrong(f"""the checkpoint changed while training went on, for it shares
            memory: {error}""") from None
    fresh = Run(7)
    fresh.train(2)
    answer(fresh, saved)
    expect_same("the resumed run has another", fresh, facts)
    for i, (got, want) in enumerate(zip(fresh.train(FORWARD), losses)):
        if got != want:
            raise Wrong(f"""step {before + i}: the loss is {got:.6f}; without the stop
                it was {want:.6f}.""")
    return fresh


def describe(run):
    """Return all that the next step depends on, by name, as copies."""
    state, model = run.optimizer.state_dict(), run.model.state_dict()
    facts = {"epoch": run.epoch, "step": run.step}
    facts |= {f"tensor of the model, `{k}`": t.clone() for k, t in model.items()}
    facts["learning rate"] = state["param_groups"][0]["lr"]
    for i, entry in state["state"].items():
        facts[f"momentum of parameter {i}"] = entry["momentum_buffer"].clone()
    facts["count of the scheduler's steps"] = run.scheduler.last_epoch
    facts["state of torch's random numbers"] = torch.get_rng_state()
    facts["state of Python's random numbers"] = random.getstate()
    return facts


def expect_same(what, run, facts):
    """Name the first thing that is not as it was; random numbers by rank."""
    found, rng = describe(run), everyone(facts["state of torch's random numbers"])
    if not all(map(torch.is_tensor, rng)):
        raise Wrong("""a collective of yours met one that comes behind your function:
            not every rank called it. All ranks are asked for a checkpoint, not rank 0
            alone.""")
    for name, want in facts.items():
        got, end = found.get(name, "none"), ""
        if torch.is_tensor(want) and torch.is_tensor(got):
            same = torch.equal(got, want)
            of = [r for r, one in enumerate(rng) if r != rank and torch.equal(one, got)]
            end = f": it is that of rank {of[0]}" if "random" in name and of else ""
        else:
            same = type(got) is type(want) and got == want
            want = "its momentum" if torch.is_tensor(want) else want
            end = "" if "random" in name else f": {got}, not {want}"
        if not same:
            raise Wrong(f"{what} {name}{end}.")
