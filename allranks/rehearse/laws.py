"""The laws that a healthy job obeys, as functions of its records.

Each yields what is broken, and that is never a guess. A law says what must hold in the
records, and is silent where they do not tell (a data set that only this rank knows, a
sampler that draws with replacement, a job that is not data-parallel).
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from allranks.base.report import name_ranks
from allranks.base.units import amount
from allranks.rehearse.lines import short
from allranks.rehearse.records import (
    GUARD,
    Copy,
    DdpModel,
    Epoch,
    Record,
)

Job = list[Record]  # in the order of ranks; all its processes ran at one time
Broken = Iterator[tuple[str, str]]  # a sentence, and the line that it is about, or ""
Row = list[Epoch]  # one epoch of one loader: of W ranks, each with about N/W indices

MIN_STEPS = 4  # a loop has as many, and not a first step that is unlike the others
MIN_INDICES = 8  # of an epoch: fewer may come in the same order by chance
LARGE_PEAK = 16e6  # bytes of a GPU's peak that is worth a word
SMALL_SHARE = 0.1  # of a peak, which nobody would miss
FEW_BUFFERS = 0.05  # of the gradients' bytes
STATE = "parameters", "gradients", "optimizer"  # what FSDP shards
REDUCES = "all_reduce", "reduce", "reduce_scatter", "all_gather"
# torch's words for ranks that do not come to the store
ABSENT = "clients joined", "while trying to connect"


@dataclass(frozen=True)
class Run:
    """All jobs of a rehearsal together, and the GPUs of all its nodes."""

    records: list[Record]
    num_gpus: int


# Who is on which GPU


def one_rank_a_gpu(job: Job) -> Broken:
    """Check that no two ranks of a host work on one GPU."""
    users: dict[tuple[str, int], list[Record]] = {}
    for record in job:
        if record.rank is not None and record.main_gpu:
            gpu = record.host, record.main_gpu.physical
            users.setdefault(gpu, []).append(record)
    for (host, gpu), records in users.items():
        ranks = [r.rank for r in records]
        if len(set(ranks)) > 1:
            local_ranks = {r.local_rank for r in records}
            though = ", though LOCAL_RANK differs" if len(local_ranks) > 1 else ""
            yield (
                f"{name_ranks(ranks)} work on one GPU, cuda:{gpu} of {host}{though}. "
                'Call torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) before '
                "anything uses a GPU",
                records[-1].main_gpu.first_line,
            )


def no_stray_memory(job: Job) -> Broken:
    """Check that no rank holds memory on the GPU of another."""
    owners = {(r.host, r.main_gpu.physical): r.rank for r in job if r.main_gpu}
    for record in job:
        for gpu in record.gpus:
            owner = owners.get((record.host, gpu.physical))
            if gpu is record.main_gpu or owner in (None, record.rank):
                continue
            yield (
                f"rank {record.rank} works on cuda:{record.main_gpu.physical}, and "
                f"holds memory on rank {owner}'s cuda:{gpu.physical} too. Call "
                "torch.cuda.set_device(local_rank) before anything uses a GPU, and let "
                "torch.load have a map_location",
                gpu.first_line,
            )


def no_idle_gpu(run: Run) -> Broken:
    """Check that every GPU is used, by one job or another, if all processes ended well.

    Ranks that are started one by one, each in a rehearsal of its own, may use the rest.
    """
    records = run.records
    if not records or any(r.error or r.exit_code or not r.ended for r in records):
        return
    ranks = {r.rank for r in records}
    if any(r.declared_world_size > len(ranks) for r in records):
        return
    used = {(r.host, gpu.physical) for r in records for gpu in r.gpus}
    if not used:
        yield "the script put nothing on a GPU: it ran on the CPU", ""
        return
    missing = run.num_gpus - len(used)
    if missing > 0:
        were = "was" if missing == 1 else "were"
        yield (
            f"{missing} of {run.num_gpus} GPUs {were} not used: start a rank for each, "
            "or ask for fewer",
            "",
        )


def tensors_meet_on_their_gpu(job: Job) -> Broken:
    """Check that tensors that meet in an op are on the GPU of their rank."""
    for record in job:
        for tensor in record.error.tensors if record.error else ():
            if tensor.device != f"cuda:{record.current_device}" and tensor.line:
                name = tensor.name or "what this line makes"
                yield (
                    f"{name} is on {tensor.device}, and meets a tensor on another "
                    f"device at {short(record.error.line)}. Make it there, or move it",
                    tensor.line,
                )


def device_contexts_are_entered(job: Job) -> Broken:
    """Check that a context manager for a device is entered."""
    for record in job:
        for context in record.not_entered:
            yield (
                f"{context.name}(...) without `with` does nothing. Use `with`, or "
                "torch.cuda.set_device",
                context.line,
            )


# Copies between host and GPU


def _in_every_step(copy: Copy, record: Record) -> bool:
    """Tell whether a copy is made in every step of a loop, or in all but one."""
    return record.num_steps >= MIN_STEPS and copy.num_steps >= record.num_steps - 1


def no_copy_back_and_forth(job: Job) -> Broken:
    """Check that no tensor goes to the host and back to a GPU in every step."""
    for record in job:
        for copy in record.copies:
            if copy.left_at and _in_every_step(copy, record):
                yield (
                    "what this line copies to a GPU has come from a GPU before, at "
                    f"{short(copy.left_at)}, in every step. Leave it there, unless "
                    "the host is where it is kept on purpose",
                    copy.line,
                )


def no_wait_in_every_step(run: Run) -> Broken:
    """Check that no line of the reader's waits for a GPU in every step.

    All such lines are one finding. If each pass over the data has one step, it may wait
    once in a pass.
    """
    waiting: set[str] = set()
    for record in run.records:
        passes = [epoch for epoch in record.epochs if epoch.trains]
        if len(passes) >= record.num_steps - 1:
            continue
        for copy in record.copies:
            waits = copy.waits and copy.target == "cpu" and copy.line
            if waits and _in_every_step(copy, record):
                waiting.add(copy.line)
    if waiting:
        first, *others = sorted(waiting, key=_file_and_number)
        too = f", and so at {', '.join(map(short, others))}" if others else ""
        yield (
            "the program waits for the GPU in every step, since data go to the host "
            f"(.item(), .cpu(), print){too}. Do it every so many steps",
            first,
        )


def _file_and_number(line: str) -> tuple[str, int]:
    """Return what lines are sorted by, so that line 9 comes before line 10."""
    file, _, number = line.rpartition(":")
    return file, int(number)


# What ranks have in common


def ranks_are_started(job: Job) -> Broken:
    """Check that all ranks of a job are started."""
    started = {r.rank for r in job if r.rank is not None}
    for record in job:
        text = record.error.text if record.error else ""
        line = record.error.line if record.error else record.standing_line
        missing = sorted({*range(record.declared_world_size)} - started)
        # Its own timeout has ended it, or the rehearsal's has while it still waited.
        waited = any(words in text for words in ABSENT) or (
            record.in_rendezvous and not record.ended
        )
        if waited and missing and record.num_processes < record.declared_world_size:
            yield (
                f"WORLD_SIZE is {record.declared_world_size}, and nobody started "
                f"{name_ranks(missing)}, for which {name_ranks(sorted(started))} "
                "waited. Start a process for each rank: torchrun --nproc-per-node "
                f"{record.declared_world_size}, or mp.spawn",
                line,
            )
            return


def gradients_are_averaged(job: Job) -> Broken:
    """Check that ranks that train send something after their first step.

    What goes through gloo, between tensors on the host, is not counted.
    """
    ranks = [r for r in job if r.rank is not None and r.world_size > 1]
    if any(r.uses_gloo for r in ranks):
        return
    alone = all(r.num_steps > 1 and not r.num_late_collectives for r in ranks)
    if len(ranks) > 1 and alone:
        yield (
            f"{name_ranks([r.rank for r in ranks])} train, and nothing is sent "
            "between them after the first step: the gradients are never averaged. "
            "Wrap the model in DistributedDataParallel, and call the wrapper",
            "",
        )


def replicas_are_equal(job: Job) -> Broken:
    """Check that replicas, in DDP or averaged by hand, hold equal parameters."""
    yield from _replicas_by_hand(job)
    replicas = [r for r in job if r.replicated]
    named = any(guard_finds(GUARD)(job))  # with the parameter, which is more
    if len(replicas) < 2 or named:
        return
    for step in sorted(replicas[0].digests):
        digests = {r.digests.get(step) for r in replicas}
        if None in digests or any(digest != digest for digest in digests):
            continue  # a rank ended before, or has NaNs, which differ from themselves
        if len(digests) > 1:
            yield (
                f"after step {step} the ranks' parameters differ, though DDP keeps "
                "them equal: something changes or steps them on one rank alone",
                "",
            )
            return


def _replicas_by_hand(job: Job) -> Broken:
    """Yield where weights differ, though the program has averaged their gradients."""
    ranks = [r for r in job if r.rank is not None and r.unwrapped_sums]
    talk = all(any(call.op in REDUCES for call in r.collectives) for r in ranks)
    if len(ranks) < 2 or len(ranks) < ranks[0].world_size or not talk:
        return
    for first in ranks[0].unwrapped_sums:
        same_step = [  # one for each rank, if all have made this step
            sums
            for r in ranks
            for sums in r.unwrapped_sums
            if (sums.step, sums.optimizer) == (first.step, first.optimizer)
        ]
        counts = {sums.num_parameters for sums in same_step}
        gradients = {sums.gradients for sums in same_step}
        weights = {sums.weights for sums in same_step}
        # Gradients of 0 are equal without any averaging, NaNs differ from themselves,
        # and with other counts of them the ranks hold parts of one model.
        known = len(same_step) == len(ranks) and all(g == g and g for g in gradients)
        if known and len(counts) == len(gradients) == 1 and len(weights) > 1:
            yield (
                f"before step {first.step + 1} all ranks have the same gradients, so "
                "the program averages them, but their parameters differ: nobody made "
                "them equal. Broadcast them from rank 0 before the first step, or "
                "build the model from one seed",
                first.line,
            )
            return


def guard_finds(kind: str) -> Callable[[Job], Broken]:
    """Return the law of what ``allranks.guard`` has found between the ranks."""

    def check(job: Job) -> Broken:
        """Yield what it has found of this kind."""
        for record in job:
            for finding in record.guard.findings if record.guard else ():
                if finding.kind == kind:
                    yield finding.text.rstrip("."), finding.line

    return check


# Which samples each rank reads


def _rows(job: Job) -> Iterator[Row]:
    """Yield each epoch that all ranks of a data-parallel job have of the same data."""
    ranks = [r for r in job if r.rank is not None]
    if len(ranks) < 2 or not all(r.data_parallel for r in ranks):
        return
    for row in zip(*(r.epochs for r in ranks), strict=False):
        same = len({(e.loader, e.data, e.num_samples) for e in row}) == 1
        known = all(e.whole and e.indices and e.data for e in row)
        if same and known and row[0].data[0]:
            yield list(row)


def _repeats(row: Row) -> tuple[int, bool]:
    """Count readings beyond the first of each sample, and whether one rank has any."""
    counts: Counter = Counter()
    for epoch in row:
        counts.update(epoch.indices)
    within = any(len(set(e.indices)) < len(e.indices) for e in row)
    return sum(counts.values()) - len(counts), within


def no_sample_twice(job: Job) -> Broken:
    """Check that in training no sample is read twice, but for what fills up shares."""
    for row in _rows(job):
        repeats, within = _repeats(row)
        # A sampler fills up the shares of W ranks with W - 1 samples at most.
        if all(e.trains for e in row) and not within and repeats >= len(row):
            cure = "" if row[0].distributed else " DistributedSampler is missing."
            yield (
                f"{repeats} of {sum(len(e.indices) for e in row)} samples of an epoch "
                f"are read again by another rank.{cure} Give each rank a share",
                row[0].line,
            )
            return


def no_sample_left_out(job: Job) -> Broken:
    """Check that an epoch of training reads every sample, unless it drops the last."""
    for row in _rows(job):
        complete = all(e.finished and e.trains and not e.drop_last for e in row)
        if not complete or _repeats(row)[1]:
            continue
        seen = set().union(*(e.indices for e in row))
        missing = row[0].num_samples - len(seen)
        if row[0].distributed and missing > 0:
            yield (
                f"{missing} of {row[0].num_samples} samples are read by no rank in a "
                "complete epoch: do the sampler's num_replicas and rank match the job?",
                row[0].line,
            )
            return


def order_changes(job: Job) -> Broken:
    """Check that a shuffling DistributedSampler has another order in the next epoch."""
    for record in job:
        last: dict[int, Epoch] = {}  # by loader
        for epoch in record.epochs:
            if not (epoch.shuffles and epoch.trains):
                continue  # a pass before training may have the order of epoch 0
            before = last.get(epoch.loader)
            last[epoch.loader] = epoch
            enough = len(set(epoch.indices)) >= MIN_INDICES
            if before and enough and before.indices == epoch.indices:
                yield (
                    "the sampler gives the same order in each epoch. Call "
                    "sampler.set_epoch(epoch) before the loop over the loader",
                    epoch.line,
                )
                return


def evaluation_counts_once(job: Job) -> Broken:
    """Check that in evaluation, no sample counts twice."""
    for row in _rows(job):
        repeats, within = _repeats(row)
        trained = any(e.trains for e in row)
        if trained or within or not all(e.finished for e in row):
            continue  # a loop that was left may have been one of training
        if row[0].distributed and repeats:
            yield (
                f"DistributedSampler fills up {row[0].num_samples} samples for "
                f"{len(row)} ranks, so {repeats} {'is' if repeats == 1 else 'are'} "
                "counted twice. Leave the repeats out of the sums, or give the ranks "
                "uneven shares",
                row[0].line,
            )
            return


# What is sent, saved and sharded for nothing


def gradients_are_sent_once(job: Job) -> Broken:
    """Check that DDP averages gradients once in a step, and not in each pass."""
    for record in job:
        if len(record.ddp) != 1 or record.fsdp or record.num_steps < 2:
            continue  # which all_reduce belongs to which model is not known
        model, passes = record.ddp[0], record.num_backwards
        sent = record.sent_bytes("all_reduce", model.group)
        if record.num_accumulations < record.num_steps or len(model.group) < 2:
            continue
        if abs(sent - passes * model.num_bytes) > 0.01 * sent:
            continue
        calls = [
            c for c in record.collectives if c.op == "all_reduce" and c.in_backward
        ]
        each_step = passes / record.num_steps
        yield (
            f"DDP averages the gradients in each of the {each_step:.3g} "
            "backward passes of a step, where once would do. Put all passes but the "
            "last one of a step into `with model.no_sync():`, with their forward",
            calls[0].line,
        )
        return


def sent_buffers_change(job: Job) -> Broken:
    """Check that DDP does not send buffers in each forward that never change."""
    for record in job:
        for model in record.ddp:
            line = _line_of_buffers(model, record)
            if line is not None and model.constant_buffers:
                yield (
                    f"DDP sends {amount(model.buffer_bytes, 'B')} of buffers in each "
                    "forward pass, and none of them ever changes. Say "
                    "DDP(..., broadcast_buffers=False)",
                    line,
                )
                return


def _line_of_buffers(model: DdpModel, record: Record) -> str | None:
    """Return where DDP sends many bytes of buffers in each step; None if it does not.

    It makes one broadcast for each dtype, in each of a step's forward passes. Together
    they are the buffers' bytes, once or several times.
    """
    calls = [
        call
        for call in record.collectives
        if call.op == "broadcast"
        and not call.in_backward
        and call.group == model.group
        and call.num_steps >= max(record.num_steps - 1, MIN_STEPS)
    ]
    sent = sum(call.num_bytes * call.times // call.num_steps for call in calls)
    many = model.buffer_bytes > FEW_BUFFERS * model.num_bytes
    return calls[0].line if many and sent and sent % model.buffer_bytes == 0 else None


def gradients_go_through_nccl(job: Job) -> Broken:
    """Check that what GPUs send each other in each step goes through NCCL."""
    for record in job:
        steady = [
            call
            for call in record.gloo_collectives
            if call.op.removesuffix("_coalesced") in ("allreduce", "reduce_scatter")
            and call.num_steps >= max(record.num_steps - 1, MIN_STEPS)
        ]
        # If NCCL carries something, gloo may be meant for a few numbers.
        if steady and not record.num_late_collectives:
            yield (
                f"{amount(sum(call.num_bytes for call in steady), 'B')} on GPUs go "
                "through gloo in each step, so by way of the host. Name NCCL for them: "
                'init_process_group("nccl"), or "cpu:gloo,cuda:nccl" if the CPU '
                "sends, too",
                steady[0].line,
            )
            return


def one_writer_a_file(job: Job) -> Broken:
    """Check that no two ranks of a host save to one file."""
    writers: dict[tuple[str, str, str], set[int]] = {}
    for record in job:
        for file in record.saved:
            if file.path and record.rank is not None:
                key = record.host, file.path, file.line
                writers.setdefault(key, set()).add(record.rank)
    for (_, path, line), ranks in writers.items():
        if len(ranks) > 1:
            yield (
                f"{name_ranks(sorted(ranks))} save to one file, "
                f"{path.rpartition('/')[2]}: it is torn, or has what the last one "
                "wrote. Let rank 0 alone save, and the others wait for it, or give "
                "each rank a file of its own",
                line,
            )
            return


def saved_keys_are_the_models(job: Job) -> Broken:
    """Check that a saved state dict has the keys of the model, without its wrapper."""
    for record in job:
        for file in record.saved:
            if file.wrapped_keys:
                yield (
                    'all keys of a saved state dict begin with "module.", so the model '
                    "without its wrapper cannot load it. Save "
                    "model.module.state_dict()",
                    file.line,
                )
                return


def sharding_saves_memory(job: Job) -> Broken:
    """Check that what FSDP shards is a part of the memory that one would miss."""
    for record in job:
        if not record.fsdp or record.num_steps < 2:
            continue
        num_ranks = len(record.fsdp[0].group)
        for gpu in record.gpus:
            # Each rank holds 1/W of it.
            whole = num_ranks * sum(gpu.holders.get(name, 0) for name in STATE)
            most = max(gpu.holders, key=gpu.holders.get, default="")
            large = gpu.peak_bytes >= LARGE_PEAK
            if not large or whole > SMALL_SHARE * gpu.peak_bytes or most in STATE:
                continue
            yield (
                f"FSDP saves almost nothing: of {amount(gpu.peak_bytes, 'B')} at the "
                "peak, parameters, gradients and optimizer would take no more than "
                f"{amount(whole, 'B')} if they were whole. Most is {most} "
                f"({amount(gpu.holders[most], 'B')}), which sharding leaves as it is: "
                "use activation checkpointing, or a smaller batch or input",
                "",
            )
            return
