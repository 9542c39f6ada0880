"""A rank's clock: what it times, what it leaves alone; whether ranks are in step."""

import ast
import inspect
import multiprocessing
import types
from itertools import pairwise

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from allranks import Ranks
from allranks.live import clock
from allranks.live.desync import Group, Issued, find_desync
from allranks.topics.timelines.sums import place

# Its releases of torch have each of these places; another one may have fewer.
PLACES = {
    "ProcessGroup.send",
    "ProcessGroup.recv",
    "ProcessGroup.recv_anysource",
    "ProcessGroup.monitored_barrier",
    "Work.wait",
    "torch.distributed._verify_params_across_processes",
    "torch.distributed._broadcast_coalesced",
    "wait_tensor._op",
    "wait_tensor.default._op",
    "torch.autograd._engine_run_backward",
    "Future.then",
    "Future.add_done_callback",
}


def install():
    """Install the clock on a rank; return what it times."""
    return clock.install()


def issued():
    """Return what a rank has issued."""
    return clock.issued()


@pytest.fixture(scope="module")
def crew():
    """Yield four ranks for the whole module; after a failing test they are fresh."""
    with Ranks(4) as ranks:
        yield ranks


@pytest.fixture
def ranks(crew):
    """Yield four ranks with a clock each."""
    crew.run(install)
    return crew


def record(ranks, work, *args):
    """Run a function, or source text, as a job on all ranks; return their jobs."""

    def job(work, args):
        import __main__ as cells

        dist.barrier()
        clock.begin()
        if callable(work):
            work(*args)
        else:
            exec(compile(work, "ranks cell 1", "exec"), cells.__dict__)
        clock.end()
        return clock.spans()

    return ranks.run(job, work, args)


def steps(ranks):
    """Return what find_desync says about the ranks as they are now."""
    return find_desync(ranks.run(issued))


def names(job):
    """Return the names of a job's spans, in order."""
    return [span.name for span in job.spans]


def wait_for_others(key, world_size):
    """Return on rank 0 once the others are about to call; they return at once."""
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank():
        store.set(f"{key}{dist.get_rank()}", "here")
    else:
        store.wait([f"{key}{rank}" for rank in range(1, world_size)])


def straggle():
    """All-reduce on all ranks, on rank 0 0.4 s later than on the others."""
    import time

    wait_for_others("straggle", 4)
    if dist.get_rank() == 0:
        time.sleep(0.4)
    dist.all_reduce(torch.ones(4))


class Slow(torch.autograd.Function):
    """The identity, whose backward computes for 0.6 s on rank 0."""

    @staticmethod
    def forward(ctx, x):
        """Return x."""
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        """Return the gradient, on rank 0 last and after 0.6 s of processor time."""
        import time

        wait_for_others("slow", 4)  # or a busy machine may start them too late to wait
        stop = time.thread_time() + 0.6
        while dist.get_rank() == 0 and time.thread_time() < stop:
            pass
        return gradient


def train_with_ddp(slow):
    """Train a model with DDP for one step."""
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1))
    dist.barrier()
    slow.apply(net(torch.ones(2, 3))).sum().backward()


class TestInstall:
    """The timers are where they should be, and torch looks as it did before."""

    def test_every_decorated_function_is_timed_in_our_release_of_torch(self, ranks):
        """If this fails, a new torch has moved what the clock holds on to."""
        tree = ast.parse(inspect.getsource(distributed_c10d))
        decorated = {
            node.name
            for node in tree.body
            if isinstance(node, ast.FunctionDef)
            and any("_exception_logger" in ast.dump(d) for d in node.decorator_list)
        }
        assert {"all_reduce", "barrier", "send", "recv", "all_to_all"} <= decorated
        timed = ranks.run(install)[0]
        assert decorated | PLACES <= set(timed)

    def test_no_function_changes_its_identity_or_kind(self):
        """torch.compile, P2POp and the exercises compare functions."""

        def look():
            functions = {n: getattr(dist, n) for n in dir(dist) if n != "reduce_op"}
            return {n: (id(f), inspect.isfunction(f)) for n, f in functions.items()}

        def run(answer):
            before = look()
            clock.install()
            after = look()
            clock.install()
            assert look() == after
            kinds = inspect.isfunction(dist._broadcast_coalesced)
            answer.send(([n for n in before if before[n] != after[n]], kinds))

        # A fork of this process, because a rank has had its clock from the start.
        fork = multiprocessing.get_context("fork")
        answer, theirs = fork.Pipe()
        process = fork.Process(target=run, args=(theirs,))
        process.start()
        changed, are_functions = answer.recv()
        process.join()
        assert changed == ["_broadcast_coalesced", "_verify_params_across_processes"]
        assert not are_functions

    def test_what_a_release_lacks_is_left_out(self):
        """A wrapper without the cell, or a missing attribute, is no error."""
        before = list(clock._installed)

        def wrapper():
            return 1

        clock._refill(wrapper, "wrapper")
        clock._wrap(types.SimpleNamespace(), "gone", lambda f: f)
        clock._wrap(object, "__repr__", lambda f: f)
        assert wrapper() == 1
        assert clock._installed == before


class TestSpans:
    """A span says who called what, where, from when to when, and waited how long."""

    def test_those_who_come_early_wait_for_the_straggler(self, ranks):
        """All clocks are one: nobody leaves an all-reduce before the last has come."""
        jobs = record(ranks, straggle)
        for job in jobs:
            (span,) = [s for s in job.spans if s.name == "all_reduce"]
            assert span.waited == span.end - span.start
            assert job.start <= span.start <= span.end <= job.end
            assert span.end >= jobs[0].spans[-1].start
            assert job.worked + job.waited == pytest.approx(job.end - job.start)
        assert jobs[0].worked >= 0.4
        assert all(job.waited > 0.1 for job in jobs[1:])

    def test_a_span_has_the_readers_own_line(self, ranks):
        """The line is where the reader calls, however deep torch goes from there."""
        cell = (
            "\nx = torch.ones(2)\ndist.all_reduce(x)\n\ndist.broadcast_object_list([1])"
        )
        for job in record(ranks, cell):
            spans = [(s.name, place(s, "ranks cell 1")) for s in job.spans]
            assert spans == [
                ("all_reduce", "cell line 3"),
                ("broadcast_object_list", "cell line 5"),  # not the two inside
            ]

    def test_a_slow_backward_makes_ddp_wait_inside_backward(self, ranks):
        """The others wait in C++; the slow rank computes, which is no waiting."""
        jobs = record(ranks, train_with_ddp, Slow)
        spans = [[s for s in job.spans if s.name == "backward"] for job in jobs]
        assert [len(found) for found in spans] == [1] * 4
        for job, (span,) in zip(jobs, spans, strict=True):
            assert names(job)[0] == "DDP()"
            assert 0 <= span.waited <= span.end - span.start
        slow = spans[0][0]
        assert slow.waited <= slow.end - slow.start - 0.6  # however busy the machine is
        assert all(span.waited > 0.15 for (span,) in spans[1:])

    def test_messages_and_their_waits_are_spans(self, ranks):
        """A wait is named after the call whose work it waits for."""

        def talk():
            rank, x = dist.get_rank(), torch.ones(2)
            if rank == 0:
                dist.send(x, 1)
                dist.isend(x, 1).wait()
            if rank == 1:
                dist.recv(x)
                dist.irecv(x, 0).wait()
            if rank >= 2:
                ops = [dist.P2POp(dist.isend, x, 5 - rank)]
                ops += [dist.P2POp(dist.irecv, torch.ones(2), 5 - rank)]
                for work in dist.batch_isend_irecv(ops):
                    work.wait()
            dist.all_reduce(x, async_op=True).wait()

        jobs = record(ranks, talk)
        last = ["all_reduce", "all_reduce.wait"]
        assert names(jobs[0]) == ["send", "isend", "isend.wait", *last]
        assert names(jobs[1]) == ["recv", "irecv", "irecv.wait", *last]
        both = ["isend", "irecv", "isend.wait", "irecv.wait", *last]
        assert names(jobs[2]) == names(jobs[3]) == both

    def test_a_functional_collective_waits_at_the_first_use(self, ranks):
        """The wait is that of the tensor."""

        def use():
            from torch.distributed._functional_collectives import all_reduce

            (all_reduce(torch.ones(2), "sum", dist.group.WORLD) + 1).sum()

        assert all(names(job) == ["wait_tensor"] for job in record(ranks, use))

    def test_a_call_that_raises_is_a_span_too(self, ranks):
        """And the next call is timed as if nothing had happened."""

        def fail():
            with pytest.raises(ValueError, match="Invalid destination rank"):
                dist.send(torch.ones(1), dist.get_rank())
            dist.barrier()

        assert all(names(j) == ["send", "barrier"] for j in record(ranks, fail))

    def test_a_job_keeps_so_many_spans_and_counts_the_rest(self, ranks):
        """The seconds of the others are not lost either."""

        def many():
            clock.MOST_SPANS = 3
            try:
                for _ in range(8):
                    dist.barrier()
            finally:
                clock.MOST_SPANS = 10_000

        for job in record(ranks, many):
            assert (len(job.spans), job.dropped) == (3, 5)
            assert job.dropped_s > 0
            assert job.waited > job.dropped_s
        assert all(job.spans == [] for job in record(ranks, "pass"))

    def test_other_threads_are_not_timed(self, ranks):
        """A thread beside the job's has no lane of its own."""

        def beside():
            import threading

            thread = threading.Thread(target=dist.barrier)
            thread.start()
            thread.join()

        assert all(names(job) == [] for job in record(ranks, beside))

    def test_a_pipeline_of_chapter_6(self, ranks):
        """Its messages, its backward passes and their waits are all there."""

        def train():
            from scripts import ch6_pipeline

            flags = ["--steps=1", "--batch-size=8", "--microbatches=4"]
            place = dist.get_rank(), dist.get_world_size(), torch.device("cpu")
            ch6_pipeline.train(ch6_pipeline.parse_args(flags), *place)

        jobs = record(ranks, train)
        for rank, job in enumerate(jobs):
            counts = {name: names(job).count(name) for name in set(names(job))}
            neighbors = (rank > 0) + (rank < 3)
            shapes = 0 if torch.__version__.startswith("2.13.") else neighbors
            for kind in "isend", "irecv":  # torch 2.15 sends shapes so, too
                assert 0 <= counts[kind] - 4 * neighbors <= shapes
            assert counts["irecv.wait"] == counts["irecv"]
            assert counts["backward"] == 4
            assert all(a.end <= b.start for a, b in pairwise(job.spans))
            assert {place(s).split()[0] for s in job.spans} == {"ch6_pipeline.py"}
            assert job.waited < job.end - job.start
        assert steps(ranks) is None

    def test_torch_compile_compiles_what_it_compiled_before(self):
        """The timers add no graph break, and record what runs between the graphs."""

        def count():
            from torch._dynamo.utils import counters

            def collective(x):
                y = x * 2
                dist.all_reduce(y)
                return y + 1

            def message(x):
                y = x * 2
                peer = 1 - dist.get_rank()
                work = dist.isend(y, peer)
                dist.recv(torch.empty_like(y), peer)
                work.wait()
                return y + 1

            net = torch.nn.Linear(3, 3)

            def learn(x):
                loss = net(x).sum()
                loss.backward()
                return loss

            found = []
            for fn in collective, message, learn, net:
                torch._dynamo.reset()
                counters.clear()
                compiled, x = torch.compile(fn, backend="eager"), torch.ones(2, 3)
                for _ in range(2):
                    torch.testing.assert_close(compiled(x), fn(x))
                graphs = counters["stats"]["unique_graphs"]
                found.append((graphs, len(counters["graph_break"])))
            return found

        with Ranks(2) as ranks:
            before = ranks.run(count)
            ranks.run(install)
            jobs = record(ranks, count)
            assert ranks.run(count) == before
        assert before[0][0] == (1, 0)
        assert {"isend", "recv", "isend.wait", "backward"} <= set(names(jobs[0]))


class TestInStep:
    """Ranks are in step if no collective and no message lacks its other side."""

    def test_collectives_of_all_kinds_leave_ranks_in_step(self, ranks):
        """Those made of messages as well, of which rank 0 has more than others."""

        def collectives():
            from torch.nn.parallel import DistributedDataParallel

            x, four = torch.ones(4), [None] * 4
            first = dist.get_rank() == 0
            dist.barrier()
            dist.monitored_barrier()
            dist.all_gather_object(four, 1)
            dist.gather_object(1, four if first else None)
            dist.scatter_object_list([None], four if first else None)
            dist.all_to_all_single(torch.ones(4), x)
            dist.reduce(x, 2)
            DistributedDataParallel(torch.nn.Linear(2, 2))(
                torch.ones(2)
            ).sum().backward()

        ranks.run(collectives)
        assert steps(ranks) is None

    def test_a_collective_that_one_rank_alone_has_joined(self, ranks):
        """The sentence says who has joined how many."""
        count = ranks.run(issued)[0].groups["0"].collectives
        ranks.run("later = dist.all_reduce(torch.ones(1), async_op=True)", on=[0])
        assert steps(ranks) == (
            f"rank 0 has joined {count + 1} collectives, ranks 1–3 have joined {count}"
        )
        ranks.run("later = dist.all_reduce(torch.ones(1), async_op=True)", on=[1, 2, 3])
        assert steps(ranks) is None
        ranks.run("later.wait()")

    def test_a_collective_of_a_subgroup(self, ranks):
        """Only those who hold a group are compared."""
        ranks.run("pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]")
        ranks.run("dist.all_reduce(torch.ones(1), group=pairs[rank // 2])")
        ranks.run("dist.barrier(group=pairs[0])", on=[0, 1])
        assert steps(ranks) is None
        ranks.run("later = dist.barrier(group=pairs[1], async_op=True)", on=[3])
        assert steps(ranks) == (
            "in the group of ranks 2–3, rank 2 has joined 1 collective, "
            "rank 3 has joined 2"
        )
        ranks.run("dist.barrier(group=pairs[1])", on=[2])
        assert steps(ranks) is None

    def test_a_message_that_nobody_receives(self, ranks):
        """Peers are named by their global ranks, whatever the group."""
        ranks.run("pair = dist.new_group([1, 3])\nx = torch.ones(1)")
        ranks.run("later = dist.isend(x, 3, group=pair)", on=[1])
        said = "in the group of ranks 1 and 3, rank 1 has sent 1 message to rank 3"
        assert steps(ranks) == f"{said}, which receives 0 from it"
        ranks.run("dist.recv(x, 1, group=pair)", on=[3])
        ranks.run("later = dist.irecv(x, 1, tag=5)", on=[3])
        said = "rank 1 has sent 0 messages to rank 3 with tag 5, which receives 1"
        assert steps(ranks) == f"{said} from it"
        ranks.run("dist.send(x, 3, tag=5)", on=[1])
        assert steps(ranks) is None

    def test_a_message_for_a_rank_that_takes_any(self, ranks):
        """Then the sum counts, besides what it takes from one sender only."""
        ranks.run("x = torch.ones(1)\nlater = dist.irecv(x, tag=9)", on=[0])
        said = "0 messages went to rank 0 with tag 9, which receives 1"
        assert steps(ranks) == said
        ranks.run("dist.send(x, 0, tag=9)", on=[2])
        assert steps(ranks) is None
        ranks.run("later.wait()", on=[0])

    def test_a_group_that_not_all_have_made(self):
        """Who makes a group waits for the others, which have made one less."""
        made = [Issued(rank, 3 if rank == 1 else 2) for rank in range(3)]
        assert find_desync(made) == (
            "ranks 0 and 2 have made 2 process groups, rank 1 has made 3"
        )

    def test_a_group_of_the_same_name_begins_anew(self):
        """Counts belong to a group, not to its name, which torch gives again."""

        def again():
            import tempfile

            rank = dist.get_rank()
            peers = [None, None]
            dist.all_gather_object(peers, tempfile.mkdtemp() if rank == 0 else None)
            (dist.send if rank else dist.recv)(torch.ones(1), 1 - rank)
            dist.destroy_process_group()
            store = dist.FileStore(f"{peers[0]}/store", 2)
            dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
            dist.barrier()
            return clock.issued()

        with Ranks(2) as ranks:
            ranks.run(install)
            found = ranks.run(again)
        assert [i.groups["0"] for i in found] == [Group((0, 1), 1)] * 2
        assert not any(i.sends or i.receives for i in found)

    def test_a_collective_that_failed_halfway(self):
        """The count says that the rank has joined, but others may still wait for it."""

        def fail():
            kind = torch.float8_e4m3fn
            with pytest.raises(RuntimeError, match="Invalid scalar type"):
                dist.all_reduce(torch.ones(2).to(kind))
            with pytest.raises(NotImplementedError):
                dist.broadcast(torch.eye(2).to_sparse(), 0)
            return clock.issued()

        with Ranks(1) as ranks:
            ranks.run(install)
            (issued,) = ranks.run(fail)
        assert issued.failed == ("all_reduce",)
        assert find_desync([issued]) == "all_reduce failed on rank 0, perhaps halfway"

    def test_a_backend_that_does_not_count(self):
        """Nobody can tell then, which is no reason to say that all is well."""
        groups = {"0": Group((0, 1), None)}
        said = find_desync([Issued(rank, 1, groups) for rank in (0, 1)])
        assert said == "nothing counts the collectives of ranks 0–1"
