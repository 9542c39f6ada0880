"""Scatter a batch.

Ranks: 1
Minutes: 8

`nn.DataParallel` cuts each batch along its first dimension, and gives each device one
piece, called a shard. Do the same by hand.

`ex2_1(batch, num_devices)` gets a tensor of `N` samples and the number of devices.
Return a list of the shards, in order. Cut as `torch.chunk` does:

- Each shard has `ceil(N / num_devices)` samples. The last one has what is left.
- There may be fewer shards than devices: 5 samples on 4 devices make shards of 2, 2 and
  1 samples. No shard is empty.
- The shards **share the batch's memory**: they are views, not copies.

Use slices, and compute yourself where to cut. The check refuses `chunk`, `split` and
their relatives, and compares your shards with those of `torch.chunk`.

Hint 1: With 5 samples on 4 devices, how many samples has a shard? Which device gets
    nothing?
Hint 2: Compute the size of a shard first, rounded up, then walk through the batch in
    steps of this size until it ends.
Hint 3: The shards begin at `range(0, len(batch), size)`, and `batch[i : i + size]` is a
    view.
"""


# %% solution
def ex2_1(batch, num_devices):
    """Return the shards of `batch` for `num_devices` devices, as views."""
    size = -(-len(batch) // num_devices)  # rounded up
    return [batch[i : i + size] for i in range(0, len(batch), size)]


# %% check
CUTS = """chunk split tensor_split hsplit vsplit split_with_sizes unsafe_chunk
unsafe_split unsafe_split_with_sizes"""
CASES = {  # the batch, the number of devices
    "an even cut": (lambda: torch.randn(8, 3), 4),
    "10 samples on 4 devices": (lambda: torch.randn(10, 3), 4),
    "5 samples on 4 devices": (lambda: torch.randn(5, 3), 4),
    "fewer samples than devices": (lambda: torch.randn(2, 3), 4),
    "one device": (lambda: torch.randn(6, 3), 1),
    "a batch that is not contiguous": (lambda: torch.randn(3, 7).t(), 3),
    "labels: one dimension, integers": (lambda: torch.randint(10, (9,)), 2),
    "a batch on a GPU": (lambda: torch.randn(5, 3).to("vgpu:0"), 2),
}


def check(answer, case):
    from allranks import vgpu

    vgpu.plug_in(1)
    owners = [(torch, name) for name in CUTS.split() if hasattr(torch, name)]
    owners += [(torch.Tensor, n) for n in CUTS.split() if hasattr(torch.Tensor, n)]
    real = [(owner, name, getattr(owner, name)) for owner, name in owners]
    for name, (make, num_devices) in case.each(CASES):
        batch = make()
        untouched, want = Untouched(batch=batch), list(batch.chunk(num_devices))
        for owner, name in owners:
            forbid(owner, [name], "here you find out yourself where to cut.")
        got = answer(batch, num_devices)
        for original in real:
            patch(*original)
        untouched()
        got = list(got) if isinstance(got, tuple) else got
        if isinstance(got, list) and all(isinstance(s, torch.Tensor) for s in got):
            sizes, right = [len(s) for s in got], [len(s) for s in want]
            if sizes != right:
                raise Wrong(f"""{len(batch)} samples on {num_devices} devices: your
                    shards have {sizes} samples; DataParallel's have {right}.""")
        expect("the list of shards", got, want)
        for i, shard in enumerate(got):
            before = want[i].clone()
            batch += 1
            if torch.equal(shard, before):
                raise Wrong(f"shard {i} is a copy; it should be a view of the batch.")
