"""Each law of a rehearsal names what is broken, and is silent on what is healthy."""

import copy
import json

import pytest

from allranks.rehearse import findings, hangs, page, report, tables
from tests.allranks.rehearse.running import sentences

GPU = {"peak": 2048, "capacity": 4096, "holders": {"parameters": 2048}}


def gpu(index, line="train.py:9", peak=2048):
    """Return a GPU's row."""
    about = {"index": index, "physical": index, "first_line": line, "peak": peak}
    growth = {"batch": 8, "moments": [[2048, 512], [1536, 1024]], "lacking": []}
    return GPU | about | {"lines": [[line, peak]], "growth": growth}


def epoch(rank, **changes):
    """Return a rank's pass over 16 samples, of which it reads every other one."""
    about = {"loader": 0, "line": "train.py:20", "num_samples": 16, "finished": True}
    about |= {"indices": list(range(rank, 16, 2)), "first_step": 0, "last_step": 4}
    about |= {"whole": True, "distributed": True, "shuffles": True, "drop_last": False}
    return about | {"data": [7, True]} | changes


def record(rank):
    """Return a healthy rank's record."""
    later = epoch(rank, indices=list(range(14 + rank, -1, -2)))
    return {
        "host": "node0",
        "pid": 100 + rank,
        "began": 1e9,
        "of_command": True,
        "rank": rank,
        "local_rank": rank,
        "world_size": 2,
        "asked": 2,
        "processes": 2,
        "meeting": False,
        "gpus": [gpu(rank)],
        "current": rank,
        "steps": 8,
        "backwards": 8,
        "added": 0,
        "scaled": 0,
        "own": [],
        "saved": [],
        "through_host": [],
        "calls": [],
        "copies": [],
        "epochs": [epoch(rank), later | {"first_step": 4, "last_step": 8}],
        "wrapped": True,
        "data_parallel": True,
        "late_calls": 7,
        "unseen": False,
        "last_call": None,
        "not_entered": [],
        "digests": {"1": 0.5, "2": 0.25},
        "ddp": [],
        "fsdp": [],
        "guard": {"models": ["DDP"], "found": [], "remarks": [], "off": []},
        "modelled_s": 1e-3,
        "error": None,
        "ended": True,
        "exit": 0,
        "deaths": {},
        "stands": "",
    }


def healthy():
    """Return the records of two healthy ranks."""
    return [record(0), record(1)]


def wait(steps, waits=True, target="cpu"):
    """Return a copy that happens in so many steps."""
    about = {"source": "cuda:0", "target": target, "line": "train.py:30", "back": ""}
    return about | {"waits": waits, "times": steps, "bytes": 4, "steps": steps}


def back(steps, went="train.py:28"):
    """Return a copy to a GPU of what went to the host at another line."""
    about = {"source": "cpu", "target": "cuda:0", "line": "train.py:31", "back": went}
    return about | {"waits": True, "times": steps, "bytes": 4, "steps": steps}


def share_a_gpu(ranks):
    ranks[1]["gpus"] = [gpu(0)]


def stray(ranks):
    ranks[1]["gpus"] = [gpu(0, "train.py:5", 512), gpu(1)]


def leave_idle(ranks):
    del ranks[1]
    ranks[0]["asked"] = 1


def wait_each_step(ranks):
    ranks[0]["copies"] = [wait(8), wait(8) | {"line": "train.py:9"}]
    ranks[1]["copies"] = [wait(7) | {"line": "train.py:40"}]


def call(op, num_bytes, times=8, steps=8, inside="backward"):
    """Return a collective of both ranks."""
    about = {"op": op, "bytes": num_bytes, "group": [0, 1], "line": "train.py:27"}
    return about | {"in": inside, "times": times, "steps": steps}


def model(**changes):
    """Return a model in DDP, with 40 bytes of gradients and 24 of buffers."""
    about = {"bytes": 40, "parameters": 2, "group": [0, 1], "buckets": []}
    return about | {"buffers": 24, "constant": True} | changes


def train(ranks, **changes):
    """Let both ranks train a model in DDP, and send what it has to send."""
    for one in ranks:
        one |= {"ddp": [model()], "calls": [call("all_reduce", 40)]} | changes


def synchronise_each_pass(ranks):
    twice = [call("all_reduce", 40, times=16)]
    train(ranks, backwards=16, added=8, calls=twice)


def send_constants(ranks):
    sent = [call("broadcast", 24, inside=""), call("all_reduce", 40)]
    train(ranks, calls=sent)


def take_gloo(ranks):
    for one in ranks:
        over = [["allreduce", 40, "train.py:27", 8, 8]]
        one |= {"late_calls": 0, "through_host": over, "unseen": True}


def save_wrapped(ranks):
    ranks[0]["saved"] = [["train.py:33", "/tmp/net.pt", True]]


def save_all(ranks):
    for one in ranks:
        one["saved"] = [["train.py:33", "/tmp/net.pt", False]]


def shard_little(ranks):
    for one in ranks:
        held = {"activations": 90e6, "parameters": 1e6, "optimizer": 2e6}
        one["gpus"] = [one["gpus"][0] | {"peak": 95e6, "holders": held}]
        one["fsdp"] = [{"bytes": 2e6, "trained": 2e6, "again": 0, "group": [0, 1]}]


def start_one_rank(ranks):
    del ranks[1]
    text = "Timed out after 8 seconds waiting for clients. 1/2 clients joined."
    error = {"type": "DistStoreError", "text": text, "line": "train.py:3", "log": ""}
    ranks[0] |= {"error": error, "processes": 1, "gpus": []}


def stop_while_one_waits(ranks):
    del ranks[1]
    waits = {"meeting": True, "ended": False, "stands": "train.py:3"}
    ranks[0] |= waits | {"processes": 1, "gpus": []}


def average_by_hand(ranks, weights=0.5):
    for one in ranks:
        sums = [2, 0.125, weights + one["rank"] * 0.25]
        own = [[[0, 0], sums, "train.py:29"]]
        one |= {"wrapped": False, "digests": {}, "own": own}
        one["calls"] = [call("all_reduce", 40, inside="")]


def there_and_back(ranks):
    ranks[1]["copies"] = [back(7)]


def guard_finds(kind):
    def damage(ranks):
        for one in ranks:
            found = [[kind, "step 2: is it apart?", "train.py:25"]]
            one["guard"] = one["guard"] | {"found": found}

    return damage


def meet_elsewhere(ranks):
    own = {"device": "cuda:1", "name": "x", "line": "train.py:7"}
    mask = {"device": "cpu", "name": "self.mask", "line": "train.py:6"}
    error = {"type": "RuntimeError", "text": "Expected", "line": "train.py:8"}
    ranks[1]["error"] = error | {"log": "", "made": [own, mask]}


def differ(ranks):
    ranks[1]["digests"] = {"1": 0.5, "2": 0.75}


def never_talk(ranks):
    for one in ranks:
        one |= {"late_calls": 0, "wrapped": False, "data_parallel": False}


def wait_once_in_a_pass(ranks):
    ranks[0]["copies"] = [wait(8)]
    orders = [list(range(0, 16, 2)), list(range(14, -1, -2))]
    ranks[0]["epochs"] = [
        epoch(0, indices=orders[n % 2], first_step=n, last_step=n + 1) for n in range(8)
    ]


def talk_over_gloo(ranks):
    never_talk(ranks)
    ranks[0]["unseen"] = True


def without_with(ranks):
    ranks[0]["not_entered"] = [["torch.cuda.device", "train.py:4", 1]]


def read_everything(ranks):
    for one in ranks:
        one["epochs"] = [epoch(0, indices=list(range(16)), distributed=False)]


def forget_some(ranks):
    for rank, one in enumerate(ranks):
        one["epochs"] = [epoch(rank, indices=list(range(rank, 16, 4)))]


def same_order(ranks):
    for rank, one in enumerate(ranks):
        later = epoch(rank, first_step=4, last_step=8)
        one["epochs"] = [epoch(rank), later]


def pad(ranks):
    for rank, one in enumerate(ranks):
        own = [0, 2, 4] if rank == 0 else [1, 3, 0]
        still = {"last_step": 0, "num_samples": 5, "shuffles": False}
        one["epochs"] = [epoch(rank, indices=own, **still)]


BROKEN = {
    "shared-gpu": (share_a_gpu, "ranks 0 and 1|ranks 0–1", "train.py:9"),
    "stray-memory": (stray, "rank 1 works on cuda:1", "train.py:5"),
    "idle-gpu": (leave_idle, "1 of 2 GPUs was not used", ""),
    "waits-every-step": (
        wait_each_step,
        "at train.py:30, train.py:40",
        "train.py:9",
    ),
    "sync-every-pass": (synchronise_each_pass, "each of the 2 backward", "train.py:27"),
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
    assert findings.judge(healthy(), gpus=2) == []


def test_every_law_has_a_broken_example():
    """A new law needs one here."""
    assert set(BROKEN) == set(findings.LAWS)


@pytest.mark.parametrize("kind", BROKEN)
def test_a_law_names_what_is_broken_and_its_line(kind):
    """The finding of this kind says what and where."""
    damage, words, line = BROKEN[kind]
    ranks = healthy()
    damage(ranks)
    found = [f for f in findings.judge(ranks, gpus=2) if f.kind == kind]
    assert len(found) == 1
    assert any(word in found[0].text for word in words.split("|"))
    assert found[0].line == line


def rarely(ranks):
    ranks[0]["copies"] = [wait(2), wait(8, waits=False), wait(8, target="cuda:0")]
    ranks[1]["copies"] = [back(2), back(8, went="")]


def other_data(ranks):
    read_everything(ranks)
    ranks[1]["epochs"][0]["data"] = [8, True]  # each rank has files of its own


def unknown_data(ranks):
    read_everything(ranks)
    for one in ranks:
        one["epochs"][0]["data"] = [0, False]


def tensor_parallel(ranks):
    read_everything(ranks)
    for one in ranks:
        one |= {"wrapped": False, "data_parallel": False}


def padded_training(ranks):
    for rank, one in enumerate(ranks):
        own = [0, 2, 4] if rank == 0 else [1, 3, 0]
        one["epochs"] = [epoch(rank, indices=own, num_samples=5)]


def drop_the_last(ranks):
    for rank, one in enumerate(ranks):
        own = list(range(rank, 12, 2))
        one["epochs"] = [epoch(rank, indices=own, drop_last=True)]


def break_early(ranks):
    forget_some(ranks)
    for one in ranks:
        one["epochs"][0]["finished"] = False


def look_before_training(ranks):
    for rank, one in enumerate(ranks):
        first = epoch(rank, last_step=0)
        one["epochs"] = [first, *one["epochs"]]  # in the order of epoch 0


def leave_after_one_step(ranks):
    pad(ranks)
    for one in ranks:
        one["epochs"][0]["finished"] = False


def train_once_more(ranks):
    """Start another job, whose digests and shares are its own."""
    again = [copy.deepcopy(one) for one in ranks]
    for one in again:
        one |= {"pid": 200 + one["rank"], "began": 2e9, "digests": {"1": 0.75}}
    ranks += again


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
    assert [(f.kind, f.line) for f in findings.judge(ranks, gpus=2)] == [(kind, line)]


def accumulate_under_no_sync(ranks):
    train(ranks, backwards=16, added=8)


def sum_two_losses(ranks):
    """Without zero_grad between them, but two models share the group."""
    synchronise_each_pass(ranks)
    for one in ranks:
        one["ddp"] = [model(), model()]


def scaler_skips(ranks):
    train(ranks, backwards=16, scaled=16, calls=[call("all_reduce", 40, times=16)])


def normalise_batches(ranks):
    send_constants(ranks)
    for one in ranks:
        one["ddp"] = [model(constant=False)]


def send_a_few_constants(ranks):
    send_constants(ranks)
    for one in ranks:
        one["ddp"] = [model(bytes=4000)]  # of gradients, next to which they are nothing


def metrics_over_gloo(ranks):
    for one in ranks:
        one["through_host"] = [["allreduce", 4, "train.py:30", 8, 8]]


def save_once(ranks):
    ranks[0]["saved"] = [["train.py:33", "/tmp/net.pt", False]]
    ranks[1]["saved"] = [["train.py:33", "/tmp/net-1.pt", False]]
    for one in ranks:
        one["saved"].append(["train.py:35", "", False])  # to memory


def shard_much(ranks):
    shard_little(ranks)
    for one in ranks:
        one["gpus"][0]["holders"]["optimizer"] = 20e6


def shard_something_small(ranks):
    shard_little(ranks)
    for one in ranks:
        one["gpus"][0]["peak"] = 1e6


def one_by_one(ranks):
    """Rank 1 is in a rehearsal of its own."""
    del ranks[1]


def equal_by_hand(ranks):
    for one in ranks:
        own = [[[0, 0], [2, 0.125, 0.5], "train.py:29"]]
        one |= {"wrapped": False, "digests": {}, "own": own}


def parts_of_one_model(ranks):
    """Each rank has other layers, so its gradients are other ones."""
    average_by_hand(ranks)
    ranks[1]["own"][0][1][1] = 0.25


def join_ranks(ranks):
    """Under join() their steps are no common moments, so no digest is kept."""
    for one in ranks:
        one |= {"digests": {}, "wrapped": False, "steps": 8 + one["rank"]}


@pytest.mark.parametrize(
    "change",
    [
        accumulate_under_no_sync,
        sum_two_losses,
        scaler_skips,
        normalise_batches,
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
def test_what_resembles_a_mistake_is_none(change):
    """The laws are silent where the records do not prove anything."""
    ranks = healthy()
    change(ranks)
    assert findings.judge(ranks, gpus=2) == []


@pytest.mark.parametrize(
    "how",
    [{"error": {"type": "ValueError", "text": "no"}}, {"exit": 2}, {"ended": False}],
)
@pytest.mark.parametrize("used", [[gpu(0)], []])
def test_gpus_of_a_run_that_did_not_come_to_its_end_are_not_called_idle(how, used):
    """A run that failed or was stopped may have had no time to use them."""
    ranks = [record(0) | {"gpus": used} | how]
    assert findings.judge(ranks, gpus=2) == []


def test_gather_leaves_out_who_only_started_others(tmp_path):
    """A parent, or a loader's worker, is no rank without a GPU."""
    parent = record(0) | {"rank": None, "gpus": [], "pid": 1}
    worker = record(0) | {"gpus": [], "pid": 3, "of_command": False}
    idle = record(2) | {"gpus": []}
    echo = {"type": "ProcessRaisedException", "text": "", "line": "", "log": ""}
    for one in [*healthy(), idle, worker, parent, parent | {"pid": 2, "error": echo}]:
        path = tmp_path / f"{one['pid']}.json"
        path.write_text(json.dumps(one), "utf8")
    assert [r["pid"] for r in findings.gather(tmp_path)] == [100, 101, 102]


def test_a_rank_that_a_signal_ended_is_named(tmp_path):
    """It leaves no error of its own, but the process that started it knows."""
    killed, stopped = (record(rank) | {"ended": False} for rank in (0, 1))
    error = {"type": "ChildFailedError", "text": "", "line": "", "log": ""}
    agent = record(0) | {
        "rank": None,
        "pid": 1,
        "gpus": [],
        "error": error,
        "deaths": {100: -11},
    }
    for one in agent, killed, stopped:
        path = tmp_path / f"{one['pid']}.json"
        path.write_text(json.dumps(one | {"stands": "train.py:3"}), "utf8")
    ranks = findings.gather(tmp_path)
    assert report.failures(ranks) == [
        "rank 0: was killed by SIGSEGV (segmentation fault)"
    ]
    plain = report.text(ranks, [], "exit code 1 after 2 s")
    assert "killed at train.py:3" in plain and "stopped at train.py:3" in plain


def test_each_rank_that_waits_for_a_message_is_named():
    """Two messages from one rank have one number; a collective is told of once."""
    ranks = [record(rank) for rank in range(3)]
    error = {"type": "DistBackendError", "text": hangs.TIMEOUT, "line": "", "log": ""}
    call = {"op": "recv", "group": [0, 1, 2], "name": "0", "number": 1}
    for one in ranks[0], ranks[2]:
        one |= {"error": error, "last_call": call | {"line": "train.py:4", "peer": 1}}
    assert [told.partition(" waited")[0] for told in hangs.waits(ranks)] == [
        "rank 0",
        "rank 2",
    ]
    for one in ranks[0], ranks[2]:
        one["last_call"] = one["last_call"] | {"op": "all_reduce", "peer": None}
    (told,) = hangs.waits(ranks)
    assert told.startswith("ranks 0 and 2 waited at train.py:4 in all_reduce")


def test_no_batch_fits_if_what_does_not_grow_takes_too_much():
    """Adam's state can be too large for any batch."""
    ranks = healthy()
    lacking = {"batch": 0, "moments": [], "lacking": [[8, 5000, 9]]}
    ranks[0]["gpus"][0]["growth"] = lacking
    plain = sentences(report.text(ranks, [], "exit code 1 after 2 s"))
    assert "none: what does not grow takes too much" in plain


def test_a_long_cell_breaks_between_its_items():
    """A number stays with its unit, and each line below the first is indented."""
    cell = ", ".join(f"{'x' * n} {n} kB" for n in range(1, 20))
    head, *lines = report._table(["GPU", "held by"], [["cuda:0", cell]]).splitlines()
    assert len(lines) > 2 and all(len(line) <= report.WIDTH for line in lines)
    assert all(line.endswith(" kB,") for line in lines[:-1])
    assert {len(line) - len(line.lstrip()) for line in lines[1:]} == {len("  cuda:0  ")}
    assert head.index("held by") == len("  cuda:0  ")


def test_a_long_table_is_cut_unless_all_is_asked_for():
    """What happens in each step comes first."""
    ranks = healthy()
    once = [call("broadcast", n, times=1, steps=1, inside="") for n in range(30)]
    ranks[0]["calls"] = [*once, call("all_reduce", 40)]
    cut, whole = (report.text(ranks, [], "", full) for full in (None, True))
    assert "... and 19 more, which --full shows" in cut
    assert cut.index("all_reduce") < cut.index("broadcast") and "29 B" not in cut
    assert "29 B" in whole and "more, which" not in whole


def test_what_no_step_has_is_not_called_so():
    """Three barriers before two steps are no 1.5 a step."""
    ranks = healthy()
    before = call("barrier", 1, times=3, steps=1, inside="")
    ranks[0] |= {"steps": 2, "calls": [before, call("all_reduce", 40, 4, 2)]}
    _, _, rows, _ = tables._traffic(ranks)
    assert [row[3] for row in rows] == ["2 a step", "3 in all"]


def test_a_scaler_that_leaves_out_each_step_is_told():
    """No step was taken, so the guard compared nothing, and the report says why."""
    ranks = healthy()
    for one in ranks:
        nothing = dict(models=[], found=[], remarks=[], off=[])
        one |= {"steps": 0, "scaled": 4, "guard": nothing}
    assert "GradScaler left out each step" in report.guarded(ranks)[0]


def test_the_report_and_the_page_say_all():
    """Failures come with the clinic's diagnosis; the page escapes what it shows."""
    ranks = healthy()
    stray(ranks)
    text = "Expected all tensors to be on the same device, but found at least two <b>"
    about = {"type": "RuntimeError", "text": text, "line": "project/train.py:7"}
    log = f"Traceback (most recent call last):\nRuntimeError: {text}\n"
    ranks[1]["error"] = about | {"log": log}
    found = findings.judge(copy.deepcopy(ranks), gpus=2)
    brief = report.text(ranks, found, "exit code 1 after 2 s")
    assert brief.splitlines()[:2] == [
        "Rehearsal: exit code 1 after 2 s; rank 1 failed",
        "Findings: 1 (stray-memory at train.py:5)",
    ]
    assert "--full" in brief and "Memory at the peak" not in brief
    plain = sentences(report.text(ranks, found, "exit code 1 after 2 s", full=True))
    assert "rank 1: train.py:7: RuntimeError: Expected all" in plain
    assert "[stray-memory] train.py:5: rank 1" in plain
    assert "node0 cuda:1" in plain and "2.05 kB" in plain and "models no real" in plain
    made = page.html(ranks, found, "exit code 1 after 2 s")
    assert "two &lt;b&gt;" in made and "<b>" not in made and "http" not in made
