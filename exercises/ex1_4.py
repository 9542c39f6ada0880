"""A doctor that always answers.

Ranks: 1
Minutes: 30
Level: hard

A doctor runs checks on a machine that may be broken, so its checks may fail too. A
check may raise an exception, call `sys.exit`, or hang in a broken driver. The doctor
must report on every check all the same.

`ex1_4(checks, seconds)` gets a dictionary from names to functions without arguments,
and a limit in seconds for each function. A good function returns a pair of strings,
`(status, found)`. Run all functions. Return a dictionary with the same names, in the
same order, and a pair of strings for each:

- what the function returned, if it returned two strings in time;
- `("warn", "no answer in 0.3 s")` if it took too long (for `seconds=0.3`);
- `("warn", "broke: ZeroDivisionError: division by zero")` if it raised, whatever it
  raised: the type, a colon, the message;
- `("warn", "broke: it returned None")` if it returned anything else (with its `repr`).

You cannot stop a function that hangs: in a driver, it reacts to no signal and to no
exception. But the next check must not wait for it, and Python must be able to end. If
it answers later, your dictionary must not change.

Hint 1: You cannot stop a function that hangs. What can you do instead of waiting for
    it? And which exceptions does `except Exception` let through?
Hint 2: Run each check in a thread of its own. `join(seconds)` ends the waiting, not the
    thread. A thread that Python does not wait for when it ends is called a daemon.
Hint 3: Give each thread a list of its own for its result. After `thread.join(seconds)`,
    look once whether the list is empty, and copy what is in it.
    In the thread, `except BaseException as error:` also catches `SystemExit`.
"""


# %% solution
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
SECONDS = 0.7
LATE = threading.Event()
BROKE = "warn", "broke: ZeroDivisionError: division by zero"


def stops():
    raise KeyboardInterrupt("by hand")


def hangs():
    end = time.monotonic() + 20
    while not LATE.is_set() and time.monotonic() < end:
        with contextlib.suppress(BaseException):  # a hanging driver reacts to nothing
            LATE.wait(20)
    return "ok", "too late"


def check(answer, case):
    ok, no = ("ok", "4 GPUs"), ("fail", "no GPU")

    def ask(name, **checks):  # name=(what is called or returned, the entry)
        case(name) if name else None
        calls = {k: c if callable(c) else lambda c=c: c for k, (c, _) in checks.items()}
        try:
            report = answer(calls, SECONDS)
        except NotImplementedError:
            raise
        except BaseException as error:
            kind = type(error).__name__
            raise Wrong(f"a {kind} of a check ended the doctor: {error}") from None
        want = {k: entry for k, (_, entry) in checks.items()}
        expect("the report", report, want) if not isinstance(report, dict) else None
        if list(report) != list(want):
            raise Wrong(f"the report has {list(report)}; the checks are {[*want]}.")
        for k, entry in want.items():
            if report[k] != entry:
                raise Wrong(f"""the entry of check {k!r} is {report[k]!r}; it should be
                    {entry!r}.""")
        return report

    ask("all is well", gpus=(ok, ok), driver=(no, no))
    ask("no check at all")
    ask("a check raises", a=(ok, ok), b=(lambda: 1 / 0, BROKE), c=(no, no))
    left = "warn", "broke: SystemExit: no driver"
    ask("a check calls sys.exit", a=(lambda: sys.exit("no driver"), left), b=(ok, ok))
    stopped = "warn", "broke: KeyboardInterrupt: by hand"
    ask("a check raises KeyboardInterrupt", a=(stops, stopped), b=(ok, ok))
    case("a check returns something else")
    for value in None, "ok", ("ok",), ("ok", 4), ["ok", "4 GPUs", "more"]:
        ask("", a=(value, ("warn", f"broke: it returned {value!r}")), b=(ok, ok))
    start, late = time.monotonic(), ("warn", f"no answer in {SECONDS} s")
    report = ask("a check hangs", a=(hangs, late), b=(ok, ok), c=(lambda: 1 / 0, BROKE))
    if time.monotonic() - start < SECONDS / 2:
        raise Wrong(f"the check had less than its {SECONDS} s: did you wait for it?")
    if not all(thread.daemon for thread in threading.enumerate()[1:]):
        raise Wrong("the thread of the hanging check keeps Python from ending.")
    case("it answers after all")
    before, others = dict(report), {*threading.enumerate()}
    LATE.set()
    for thread in others - {threading.current_thread()}:
        thread.join(5)
    expect("after a late answer, the report", report, before)
