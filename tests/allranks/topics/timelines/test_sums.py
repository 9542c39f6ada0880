"""The arithmetic of timelines."""

from hypothesis import given
from hypothesis import strategies as st

from allranks.topics.timelines.sums import Job, Span, show_time, ticks


@given(st.floats(1e-7, 1e4))
def test_ticks_are_round_few_and_within_the_axis(length):
    """They begin at 0, are equally far apart, and leave no tick's room at the end."""
    found = ticks(length)
    assert 3 <= len(found) <= 6
    assert found[0] == 0
    assert found[-1] <= length * (1 + 1e-6) < found[-1] + found[1] * (1 + 1e-5)
    assert f"{found[1]:.0e}"[0] in "125"


@given(st.floats(-7, 4).map(lambda power: 10**power))
def test_a_duration_is_shown_within_5_percent_or_a_hundredth_of_a_ms(seconds):
    """Two digits matter."""
    number, unit = show_time(seconds).split()
    shown = float(number) / {"s": 1, "ms": 1e3}[unit]
    assert abs(shown - seconds) <= max(0.055 * seconds, 0.6e-5)


def test_the_call_that_waited_most_is_taken_over_all_its_runs():
    """Calls of the same name on the same line belong together."""
    spans = [Span("send", 0, 3, 1, "f", 3), Span("recv", 3, 5, 2, "f", 2)]
    spans += [Span("recv", 5, 7, 2, "f", 2), Span("recv", 7, 8, 9, "f", 1)]
    job = Job(0, 10, spans, dropped=3, dropped_s=0.5)
    span, number, waited = job.most()
    assert (span.name, span.line, number, waited) == ("recv", 2, 2, 4)
    assert (job.waited, job.worked) == (8.5, 1.5)
    assert Job(0, 1).most() is None
