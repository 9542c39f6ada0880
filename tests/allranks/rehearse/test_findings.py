"""Each law of a rehearsal names what is broken, and is silent on what is healthy."""

import copy

import pytest

from allranks.rehearse import findings, records
from tests.allranks.rehearse.examples import (
    call,
    change,
    epoch,
    gpu,
    healthy,
    record,
)


def wait(steps, line="train.py:30", waits=True, target="cpu"):
    """Return a copy that happens in so many steps."""
    about = {"source": "cuda:0", "target": target, "line": line, "left_at": ""}
    return records.Copy(**about, waits=waits, num_steps=steps)


def back(steps, left_at="train.py:28"):
    """Return a copy to a GPU of what went to the host at another line."""
    about = {"source": "cpu", "target": "cuda:0", "line": "train.py:31"}
    return records.Copy(**about, left_at=left_at, waits=True, num_steps=steps)


def share_a_gpu(ranks):
    ranks[1].gpus = [gpu(0)]


def stray(ranks):
    ranks[1].gpus = [gpu(0, "train.py:5", 512), gpu(1)]


def leave_idle(ranks):
    del ranks[1]
    ranks[0].declared_world_size = 1


def wait_each_step(ranks):
    ranks[0].copies = [wait(8), wait(8, "train.py:9")]
    ranks[1].copies = [wait(7, "train.py:40")]


def over_gloo(num_bytes, line):
    """Return a collective that gloo sends in each step."""
    about = {"op": "allreduce", "num_bytes": num_bytes, "line": line}
    return records.GlooCollective(**about, times=8, num_steps=8)


def model(**changes):
    """Return a model in DDP, with 40 bytes of gradients and 24 of buffers."""
    return change(records.DdpModel(40, 2, [0, 1], buffer_bytes=24), **changes)


def train(ranks, **changes):
    """Let both ranks train a model in DDP, and send what it has to send."""
    for one in ranks:
        sent = {"ddp": [model()], "collectives": [call("all_reduce", 40)]}
        change(one, **sent | changes)


def synchronize_each_pass(ranks):
    twice = [call("all_reduce", 40, times=16)]
    train(ranks, num_backwards=16, num_accumulations=8, collectives=twice)


def send_constants(ranks):
    sent = [call("broadcast", 24, in_backward=False), call("all_reduce", 40)]
    train(ranks, collectives=sent)


def take_gloo(ranks):
    for one in ranks:
        sent = [over_gloo(40, "train.py:27")]
        change(one, num_late_collectives=0, gloo_collectives=sent, uses_gloo=True)


def save_wrapped(ranks):
    ranks[0].saved = [records.SavedFile("train.py:33", "/tmp/net.pt", True)]


def save_all(ranks):
    for one in ranks:
        one.saved = [records.SavedFile("train.py:33", "/tmp/net.pt")]


def shard_little(ranks):
    for one in ranks:
        holders = {"activations": 90e6, "parameters": 1e6, "optimizer": 2e6}
        change(one.gpus[0], peak_bytes=95e6, holders=holders)
        one.fsdp = [records.FsdpModel(2e6, 1, 2e6, 0, [0, 1])]


def start_one_rank(ranks):
    del ranks[1]
    text = "Timed out after 8 seconds waiting for clients. 1/2 clients joined."
    error = records.Failure("DistStoreError", text, "train.py:3")
    change(ranks[0], error=error, num_processes=1, gpus=[])


def stop_while_one_waits(ranks):
    del ranks[1]
    change(ranks[0], in_rendezvous=True, ended=False, standing_line="train.py:3")
    change(ranks[0], num_processes=1, gpus=[])


def sums(gradients, weights):
    """Return the sums before the first step."""
    return [records.ParameterSums(0, 0, 2, gradients, weights, "train.py:29")]


def average_by_hand(ranks):
    for one in ranks:
        own = sums(0.125, 0.5 + one.rank * 0.25)
        change(one, replicated=False, digests={}, unwrapped_sums=own)
        one.collectives = [call("all_reduce", 40, in_backward=False)]


def there_and_back(ranks):
    ranks[1].copies = [back(7)]


def guard_finds(kind):
    def damage(ranks):
        for one in ranks:
            text = "step 2: is it apart?"
            one.guard.findings = [records.GuardFinding(kind, text, "train.py:25")]

    return damage


def meet_elsewhere(ranks):
    own = records.TensorOrigin("cuda:1", "x", "train.py:7")
    mask = records.TensorOrigin("cpu", "self.mask", "train.py:6")
    error = records.Failure("RuntimeError", "Expected", "train.py:8")
    ranks[1].error = change(error, tensors=[own, mask])


def differ(ranks):
    ranks[1].digests = {1: 0.5, 2: 0.75}


def never_talk(ranks):
    for one in ranks:
        change(one, num_late_collectives=0, replicated=False, data_parallel=False)


def wait_once_in_a_pass(ranks):
    ranks[0].copies = [wait(8)]
    orders = [list(range(0, 16, 2)), list(range(14, -1, -2))]
    ranks[0].epochs = [
        epoch(0, indices=orders[n % 2], first_step=n, last_step=n + 1) for n in range(8)
    ]


def talk_over_gloo(ranks):
    never_talk(ranks)
    ranks[0].uses_gloo = True


def without_with(ranks):
    ranks[0].not_entered = [records.NotEntered("torch.cuda.device", "train.py:4", 1)]


def read_everything(ranks):
    for one in ranks:
        one.epochs = [epoch(0, indices=list(range(16)), distributed=False)]


def forget_some(ranks):
    for rank, one in enumerate(ranks):
        one.epochs = [epoch(rank, indices=list(range(rank, 16, 4)))]


def same_order(ranks):
    for rank, one in enumerate(ranks):
        later = epoch(rank, first_step=4, last_step=8)
        one.epochs = [epoch(rank), later]


def pad(ranks):
    for rank, one in enumerate(ranks):
        own = [0, 2, 4] if rank == 0 else [1, 3, 0]
        still = {"last_step": 0, "num_samples": 5, "shuffles": False}
        one.epochs = [epoch(rank, indices=own, **still)]


BROKEN = {
    "shared-gpu": (share_a_gpu, "ranks 0 and 1|ranks 0–1", "train.py:9"),
    "stray-memory": (stray, "rank 1 works on cuda:1", "train.py:5"),
    "idle-gpu": (leave_idle, "1 of 2 GPUs was not used", ""),
    "waits-every-step": (
        wait_each_step,
        "at train.py:30, train.py:40",
        "train.py:9",
    ),
    "sync-every-pass": (synchronize_each_pass, "each of the 2 backward", "train.py:27"),
    "constant-buffers": (send_constants, "24 B of buffers", "train.py:27"),
    "gradients-over-gloo": (take_gloo, "40 B on GPUs go through gloo", "train.py:27"),
    "wrapped-keys": (save_wrapped, "model.module.state_dict()", "train.py:33"),
    "one-file": (save_all, "ranks 0–1 save to one file, net.pt", "train.py:33"),
    "little-to-shard": (shard_little, "no more than 6 MB if", ""),
    "ranks-missing": (start_one_rank, "nobody started rank 1", "train.py:3"),
    "back-and-forth": (there_and_back, "at train.py:28", "train.py:31"),
    "wrong-device": (meet_elsewhere, "self.mask is on cpu", "train.py:6"),
    "guard": (guard_finds("guard"), "step 2", "train.py:25"),
    "same-random-numbers": (
        guard_finds("same-random-numbers"),
        "step 2",
        "train.py:25",
    ),
    "replicas-differ": (differ, "after step 2", ""),
    "gradients-not-averaged": (never_talk, "ranks 0–1 train", ""),
    "not-entered": (without_with, "without `with`", "train.py:4"),
    "samples-twice": (read_everything, "16 of 32 samples", "train.py:20"),
    "samples-never": (forget_some, "8 of 16 samples", "train.py:20"),
    "no-set-epoch": (same_order, "set_epoch", "train.py:20"),
    "padded-evaluation": (pad, "so 1 is counted twice", "train.py:20"),
}


def test_healthy_ranks_have_no_finding():
    """All laws are silent on a healthy job."""
    assert findings.judge(healthy(), num_gpus=2) == []


def test_every_law_has_a_broken_example():
    """A new law needs one here."""
    assert set(BROKEN) == set(findings.KINDS)


@pytest.mark.parametrize("kind", BROKEN)
def test_a_law_names_what_is_broken_and_its_line(kind):
    """The finding of this kind says what and where."""
    damage, words, line = BROKEN[kind]
    ranks = healthy()
    damage(ranks)
    found = [f for f in findings.judge(ranks, num_gpus=2) if f.kind == kind]
    assert len(found) == 1
    assert any(word in found[0].text for word in words.split("|"))
    assert found[0].line == line


def rarely(ranks):
    ranks[0].copies = [wait(2), wait(8, waits=False), wait(8, target="cuda:0")]
    ranks[1].copies = [back(2), back(8, left_at="")]


def other_data(ranks):
    read_everything(ranks)
    ranks[1].epochs[0].data = (8, True)  # each rank has files of its own


def unknown_data(ranks):
    read_everything(ranks)
    for one in ranks:
        one.epochs[0].data = (0, False)


def tensor_parallel(ranks):
    read_everything(ranks)
    for one in ranks:
        change(one, replicated=False, data_parallel=False)


def padded_training(ranks):
    for rank, one in enumerate(ranks):
        own = [0, 2, 4] if rank == 0 else [1, 3, 0]
        one.epochs = [epoch(rank, indices=own, num_samples=5)]


def drop_the_last(ranks):
    for rank, one in enumerate(ranks):
        own = list(range(rank, 12, 2))
        one.epochs = [epoch(rank, indices=own, drop_last=True)]


def break_early(ranks):
    forget_some(ranks)
    for one in ranks:
        one.epochs[0].finished = False


def look_before_training(ranks):
    for rank, one in enumerate(ranks):
        first = epoch(rank, last_step=0)
        one.epochs = [first, *one.epochs]  # in the order of epoch 0


def leave_after_one_step(ranks):
    pad(ranks)
    for one in ranks:
        one.epochs[0].finished = False


def train_once_more(ranks):
    """Start another job, whose digests and shares are its own."""
    again = [copy.deepcopy(one) for one in ranks]
    for one in again:
        change(one, pid=200 + one.rank, began=2e9, digests={1: 0.75})
    ranks += again


def use_gpus_in_turn(ranks):
    """Two jobs of one rank each, of which the second has the other GPU."""
    for began, one in enumerate(ranks):
        change(one, rank=0, local_rank=0, began=began)
        change(one, world_size=1, declared_world_size=1)


@pytest.mark.parametrize(
    ("damage", "kind", "line"),
    [
        (stop_while_one_waits, "ranks-missing", "train.py:3"),
        (average_by_hand, "replicas-differ", "train.py:29"),
    ],
)
def test_a_law_has_more_than_one_way_to_be_broken(damage, kind, line):
    """A run that is stopped tells nothing itself; gradients may be averaged by hand."""
    ranks = healthy()
    damage(ranks)
    assert [(f.kind, f.line) for f in findings.judge(ranks, num_gpus=2)] == [
        (kind, line)
    ]


def accumulate_under_no_sync(ranks):
    train(ranks, num_backwards=16, num_accumulations=8)


def sum_two_losses(ranks):
    """Without zero_grad between them, but two models share the group."""
    synchronize_each_pass(ranks)
    for one in ranks:
        one.ddp = [model(), model()]


def scaler_skips(ranks):
    sent = [call("all_reduce", 40, times=16)]
    train(ranks, num_backwards=16, num_scaler_steps=16, collectives=sent)


def normalize_batches(ranks):
    send_constants(ranks)
    for one in ranks:
        one.ddp = [model(constant_buffers=False)]


def send_a_few_constants(ranks):
    send_constants(ranks)
    for one in ranks:
        one.ddp = [model(num_bytes=4000)]  # next to which the buffers are nothing


def metrics_over_gloo(ranks):
    for one in ranks:
        one.gloo_collectives = [over_gloo(4, "train.py:30")]


def save_once(ranks):
    for name, one in zip(("net.pt", "net-1.pt"), ranks, strict=True):
        file = records.SavedFile("train.py:33", f"/tmp/{name}")
        one.saved = [file, records.SavedFile("train.py:35", "")]  # to memory


def shard_much(ranks):
    shard_little(ranks)
    for one in ranks:
        one.gpus[0].holders["optimizer"] = 20e6


def shard_something_small(ranks):
    shard_little(ranks)
    for one in ranks:
        one.gpus[0].peak_bytes = 1e6


def one_by_one(ranks):
    """Rank 1 is in a rehearsal of its own."""
    del ranks[1]


def equal_by_hand(ranks):
    for one in ranks:
        own = sums(0.125, 0.5)
        change(one, replicated=False, digests={}, unwrapped_sums=own)


def parts_of_one_model(ranks):
    """Each rank has other layers, so its gradients are other ones."""
    average_by_hand(ranks)
    ranks[1].unwrapped_sums[0].gradients = 0.25


def join_ranks(ranks):
    """Under join() their steps are no common moments, so no digest is kept."""
    for one in ranks:
        change(one, digests={}, replicated=False, num_steps=8 + one.rank)


@pytest.mark.parametrize(
    "imitate",
    [
        accumulate_under_no_sync,
        sum_two_losses,
        scaler_skips,
        normalize_batches,
        send_a_few_constants,
        metrics_over_gloo,
        save_once,
        shard_much,
        shard_something_small,
        one_by_one,
        equal_by_hand,
        parts_of_one_model,
        join_ranks,
        look_before_training,
        leave_after_one_step,
        train_once_more,
        use_gpus_in_turn,
        rarely,
        talk_over_gloo,
        wait_once_in_a_pass,
        other_data,
        unknown_data,
        tensor_parallel,
        padded_training,
        drop_the_last,
        break_early,
    ],
)
def test_what_resembles_a_mistake_is_none(imitate):
    """The laws are silent where the records do not prove anything."""
    ranks = healthy()
    imitate(ranks)
    assert findings.judge(ranks, num_gpus=2) == []


@pytest.mark.parametrize(
    "how",
    [
        {"error": records.Failure("ValueError", "no")},
        {"exit_code": 2},
        {"ended": False},
    ],
)
@pytest.mark.parametrize("used", [[gpu(0)], []])
def test_gpus_of_a_run_that_did_not_come_to_its_end_are_not_called_idle(how, used):
    """A run that failed or was stopped may have had no time to use them."""
    ranks = [change(record(0), gpus=used, **how)]
    assert findings.judge(ranks, num_gpus=2) == []
