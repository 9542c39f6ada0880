"""A doctor that always answers.

Chapter: 1
Ranks: 1
Minutes: 30
Level: hard

A check of a machine is code that runs on broken machines. It may raise, it may call
`sys.exit`, and when a driver hangs, it hangs too. The doctor must answer all the same.

`ex1_4(checks, seconds)` gets a dictionary from names to functions without arguments,
and a limit in seconds for each function. A good check returns `(status, found)`, two
strings. Return a dictionary that maps every name, in the same order, to such a pair:

- what the check returned, if it returned two strings in time;
- `("warn", "no answer in 0.3 s")` if it did not (for `seconds=0.3`);
- `("warn", "broke: ZeroDivisionError: division by zero")` if it raised, whatever it
  raised: the type, a colon, the message;
- `("warn", "broke: it returned None")` if it returned anything else (with its `repr`).

A check that answers too late must no longer change the report, not even after you have
returned it. It must not keep Python from ending either, and the next check must not
wait for it. Do not count on stopping it: a call into a driver that hangs reacts to no
signal and to no exception.

Hint 1: You cannot stop a function that hangs. What can you do instead of waiting for
    it? And which exceptions does `except Exception` let through?
Hint 2: Run each check in a thread of its own. `join(seconds)` ends the waiting, not the
    thread. A thread that Python does not wait for when it ends is called a daemon.
Hint 3: Give each thread a list of its own for its result. After `thread.join(seconds)`,
    look once whether the list is empty, and copy what is in it.
    In the thread, `except BaseException as error:` also catches `SystemExit`.
"""

# %% solution
import threading


def ex1_4(checks, seconds):
    """Run every check, whatever it does; return {name: (status, found)}."""

    def run(check, box):
        try:
            found = check()
            pair = isinstance(found, tuple) and [type(f) for f in found] == [str, str]
            box.append(found if pair else ("warn", f"broke: it returned {found!r}"))
        except BaseException as error:
            box.append(("warn", f"broke: {type(error).__name__}: {error}"))

    report = {}
    for name, check in checks.items():
        box = []
        thread = threading.Thread(target=run, args=(check, box), daemon=True)
        thread.start()
        thread.join(seconds)
        report[name] = box[0] if box else ("warn", f"no answer in {seconds} s")
    return report


# %% check
import sys
import threading
import time

SECONDS = 0.7


def check(answer, case):
    def fails():
        return 1 / 0

    def leaves():
        sys.exit("no driver")

    def stops():
        raise KeyboardInterrupt("by hand")

    def fine():
        return "ok", "4 GPUs"

    def bad():
        return "fail", "no GPU"

    late = threading.Event()

    def hangs():
        end = time.monotonic() + 20
        while not late.is_set() and time.monotonic() < end:
            try:
                late.wait(20)
            except BaseException:  # a driver that hangs reacts to nothing
                pass
        return "ok", "too late"

    broke = "broke: ZeroDivisionError: division by zero"
    exits, interrupt = (
        "broke: SystemExit: no driver",
        "broke: KeyboardInterrupt: by hand",
    )
    none = ("warn", f"no answer in {SECONDS} s")
    ask = compare
    case("all is well")
    ask(answer, {"gpus": fine, "driver": bad}, {"gpus": fine(), "driver": bad()})
    case("no check at all")
    ask(answer, {}, {})
    case("a check raises")
    wanted = {"a": fine(), "b": ("warn", broke), "c": bad()}
    ask(answer, {"a": fine, "b": fails, "c": bad}, wanted)
    case("a check calls sys.exit")
    ask(answer, {"a": leaves, "b": fine}, {"a": ("warn", exits), "b": fine()})
    case("a check raises KeyboardInterrupt")
    ask(answer, {"a": stops, "b": fine}, {"a": ("warn", interrupt), "b": fine()})
    case("a check returns something else")
    for value in None, "ok", ("ok",), ("ok", 4), ["ok", "4 GPUs", "more"]:
        wanted = {"a": ("warn", f"broke: it returned {value!r}"), "b": fine()}
        ask(answer, {"a": lambda value=value: value, "b": fine}, wanted)
    case("a check hangs")
    start = time.monotonic()
    report = ask(
        answer,
        {"a": hangs, "b": fine, "c": fails},
        {
            "a": none,
            "b": fine(),
            "c": ("warn", broke),
        },
    )
    if time.monotonic() - start < SECONDS / 2:
        raise Wrong(f"the check had less than its {SECONDS} s: did you wait for it?")
    keeping = [t.name for t in threading.enumerate()[1:] if not t.daemon]
    if keeping:
        raise Wrong("the thread of the hanging check keeps Python from ending.")
    case("it answers after all")
    before, others = dict(report), threading.enumerate()
    late.set()
    for thread in others:
        if thread is not threading.current_thread():
            thread.join(5)
    expect("after a late answer, the report", report, before)


def compare(answer, checks, wanted):
    """Ask for a report, and compare it entry by entry."""
    try:
        report = answer(checks, SECONDS)
    except BaseException as error:
        if isinstance(error, NotImplementedError):
            raise
        kind = type(error).__name__
        raise Wrong(f"a {kind} of a check ended the doctor: {error}") from None
    expect("the report", report, wanted) if not isinstance(report, dict) else None
    if list(report) != list(wanted):
        raise Wrong(f"the report has {list(report)}; the checks are {list(wanted)}.")
    for name, want in wanted.items():
        if report[name] != want:
            text = f"the entry of check {name!r} is {report[name]!r}; "
            raise Wrong(text + f"it should be {want!r}.")
    return report


# %% right: all checks at once, each with a queue of its own
import queue
import time


def ex1_4(checks, seconds):
    def run(check, answers):
        try:
            match check():
                case (str(), str()) as pair:
                    answers.put(tuple(pair))
                case other:
                    answers.put(("warn", f"broke: it returned {other!r}"))
        except BaseException as error:
            answers.put(("warn", f"broke: {type(error).__name__}: {error}"))

    queues = {name: queue.SimpleQueue() for name in checks}
    for name, check in checks.items():
        threading.Thread(target=run, args=(check, queues[name]), daemon=True).start()
    end, report = time.monotonic() + seconds, {}
    for name, answers in queues.items():
        try:
            report[name] = answers.get(timeout=max(0.05, end - time.monotonic()))
        except queue.Empty:
            report[name] = "warn", f"no answer in {seconds} s"
    return report


# %% wrong: no thread, so a check that hangs keeps the doctor
# = report = {}
# = for name, check in checks.items():
# =     try:
# =         found = check()
# =         pair = isinstance(found, tuple) and [type(f) for f in found] == [str, str]
# =         report[name] = found if pair else ("warn", f"broke: it returned {found!r}")
# =     except BaseException as error:
# =         report[name] = "warn", f"broke: {type(error).__name__}: {error}"
# = return report
# %% wrong: except Exception lets sys.exit through
# - except BaseException as error:
# + except Exception as error:
# %% wrong: the thread writes into the report, also when it is late
# - def run(check, box):
# + report = {}
# + def run(name, check):
# - box.append(found if pair else ("warn", f"broke: it returned {found!r}"))
# + report[name] = found if pair else ("warn", f"broke: it returned {found!r}")
# -         box.append(("warn", f"broke: {type(error).__name__}: {error}"))
# - report = {}
# +         report[name] = "warn", f"broke: {type(error).__name__}: {error}"
# - box = []
# - thread = threading.Thread(target=run, args=(check, box), daemon=True)
# + report[name] = "warn", f"no answer in {seconds} s"
# + thread = threading.Thread(target=run, args=(name, check), daemon=True)
# - report[name] = box[0] if box else ("warn", f"no answer in {seconds} s")
# %% wrong: a pool of threads, which waits for all of them when it is closed
# + from concurrent.futures import ThreadPoolExecutor
# = def run(check):
# =     try:
# =         found = check()
# =         pair = isinstance(found, tuple) and [type(f) for f in found] == [str, str]
# =         return found if pair else ("warn", f"broke: it returned {found!r}")
# =     except BaseException as error:
# =         return "warn", f"broke: {type(error).__name__}: {error}"
# = report = {}
# = with ThreadPoolExecutor() as pool:
# =     for name, check in checks.items():
# =         future = pool.submit(run, check)
# =         try:
# =             report[name] = future.result(seconds)
# =         except TimeoutError:
# =             report[name] = "warn", f"no answer in {seconds} s"
# = return report
# %% wrong: the thread is no daemon, so Python cannot end
# - thread = threading.Thread(target=run, args=(check, box), daemon=True)
# + thread = threading.Thread(target=run, args=(check, box))
# %% wrong: believes what the check returns
# - found = check()
# - pair = isinstance(found, tuple) and [type(f) for f in found] == [str, str]
# - box.append(found if pair else ("warn", f"broke: it returned {found!r}"))
# + box.append(check())
# %% wrong: an alarm, whose exception the hanging check never hears
# + import signal
# = def ring(number, frame):
# =     raise TimeoutError
# = signal.signal(signal.SIGALRM, ring)
# = report = {}
# = for name, check in checks.items():
# =     signal.setitimer(signal.ITIMER_REAL, seconds)
# =     try:
# =         found = check()
# =         pair = isinstance(found, tuple) and [type(f) for f in found] == [str, str]
# =         report[name] = found if pair else ("warn", f"broke: it returned {found!r}")
# =     except TimeoutError:
# =         report[name] = "warn", f"no answer in {seconds} s"
# =     except BaseException as error:
# =         report[name] = "warn", f"broke: {type(error).__name__}: {error}"
# =     finally:
# =         signal.setitimer(signal.ITIMER_REAL, 0)
# = return report
