"""Answers to exercise 1.4 that the check must take or refuse."""

# %% right: all checks at once, each with a queue of its own
# ~ box.append => box.put
# ~ box.append => box.put
# ~ report… => queues, report, end = {}, {}, time.monotonic() + seconds
# ~ box = [] => queues[name] = box = queue.SimpleQueue()
# - thread.join(seconds)
# -     report[name] = box[0] if box else ("warn", f"no answer in {seconds} s")
# + for name, box in queues.items():
# +     try:
# +         report[name] = box.get(timeout=max(0.05, end - time.monotonic()))
# +     except queue.Empty:
# +         report[name] = "warn", f"no answer in {seconds} s"
# %% wrong: no thread, so a check that hangs keeps the doctor
# - thread = threading.Thread(target=run, args=(check, box), daemon=True)
# - thread.start()
# ~ thread.join(seconds) => run(check, box)
# %% wrong: except Exception lets sys.exit through
# ~ BaseException => Exception
# %% wrong: the thread writes into the report, also when it is late
#   for name, check in checks.items():
# +     report[name] = "warn", f"no answer in {seconds} s"
# ~ = [] => = type("Box", (), {"append": lambda _, f, n=name: report.update({n: f})})()
# -     report[name] = box[0] if box else ("warn", f"no answer in {seconds} s")
# %% wrong: a pool of threads, which waits for all of them when it is closed
# + from concurrent.futures import ThreadPoolExecutor, wait
#   report = {}
# + pool = ThreadPoolExecutor()
# - thread = threading.Thread(target=run, args=(check, box), daemon=True)
# - thread.start()
# ~ thread.join(seconds) => wait([pool.submit(run, check, box)], seconds)
# ~ return report => return pool.shutdown() or report
# %% wrong: the thread is no daemon, so Python cannot end
# ~ (check, box), daemon=True => (check, box)
# %% wrong: believes what the check returns
# ~ found if pair else ("warn", f"broke: it returned {found!r}") => found
# %% wrong: an alarm, whose exception the hanging check never hears
#   """Run every check, whatever it does; return {name: (status, found)}."""
# + def ring(number, frame):
# +     raise TimeoutError
# + signal.signal(signal.SIGALRM, ring)
# ~ thread =… => signal.setitimer(signal.ITIMER_REAL, seconds)
# ~ thread… => run(check, box)
# ~ thread… => signal.setitimer(signal.ITIMER_REAL, 0)
