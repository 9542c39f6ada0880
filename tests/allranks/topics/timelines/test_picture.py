"""The timeline of a cell: bars fill each rank's time, and the text says the same."""

import re
import xml.etree.ElementTree as ElementTree
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks.base.svg import RANK_COLORS
from allranks.topics.timelines.picture import (
    LEFT,
    NARROW,
    WIDE,
    bars,
    summary,
    timeline,
)
from allranks.topics.timelines.sums import Job, Span

SVG = "{http://www.w3.org/2000/svg}"
CELL = "ranks cell 1"
NAMES = ["all_reduce", "irecv.wait", "backward", "barrier"]


def wait(name, start, end, line=3, waited=None, file=CELL):
    """Return a span that waited all the time, unless it says otherwise."""
    return Span(name, start, end, line, file, end - start if waited is None else waited)


@st.composite
def jobs(draw, most=40):
    """Return a job of any calls, one after the other."""
    start = draw(st.floats(0, 2))
    now, spans = start, []
    for _ in range(draw(st.integers(0, most))):
        begin = now + draw(st.floats(0, 0.1))
        now = begin + draw(st.floats(0, 0.1))
        name = draw(st.sampled_from(NAMES))
        part = draw(st.floats(0, 1)) if name == "backward" else 1
        spans.append(wait(name, begin, now, waited=part * (now - begin)))
    return Job(start, now + draw(st.floats(1e-4, 0.1)), spans)


def straggler():
    """Return the jobs of four ranks, of which rank 0 is 0.2 s late."""
    late = {0: Job(5, 5.23, [wait("all_reduce", 5.21, 5.22)])}
    return late | {
        rank: Job(5, 5.225, [wait("all_reduce", 5.01, 5.22)]) for rank in (1, 2, 3)
    }


def drawn(picture):
    """Return the root of a picture's SVG."""
    return ElementTree.fromstring(re.search("<svg.*</svg>", picture.html)[0])


def lanes(picture):
    """Return for each lane its bars as (left, right, height, red, title), in %."""
    found = []
    for lane in drawn(picture).findall(f"{SVG}g"):
        if not lane.get("style"):
            continue
        found.append([])
        for group in lane.findall(f"{SVG}g"):
            title = group.find(f"{SVG}title")
            for rect in group.findall(f"{SVG}rect"):
                x, width = (float(rect.get(k).rstrip("%")) for k in ("x", "width"))
                look = float(rect.get("height")), rect.get("class") == "red"
                said = None if title is None else title.text
                found[-1].append((x, x + width, *look, said))
    return found


class TestBars:
    """A lane's bars."""

    @given(jobs(), st.sampled_from([1e-12, 1e-4, 0.01, 0.05]))
    def test_fill_the_ranks_time_and_no_more(self, job, finest):
        """One begins where another ends, whatever is merged."""
        found = bars(job, CELL, job.start, finest)
        assert found[0].start == job.start
        assert found[-1].end == pytest.approx(job.end)
        assert all(a.end == pytest.approx(b.start) for a, b in pairwise(found))
        assert all(bar.start <= bar.end and 0 <= bar.share <= 1 for bar in found)

    @given(jobs())
    def test_add_up_to_the_work_and_the_waiting(self, job):
        """As long as nothing is merged, strong bars are the work, red the rest."""
        found = bars(job, CELL, job.start, 1e-12)
        strong = sum(b.share * (b.end - b.start) for b in found)
        assert strong == pytest.approx(job.worked, abs=1e-6)
        red = sum((1 - b.share) * (b.end - b.start) for b in found)
        assert red == pytest.approx(job.waited, abs=1e-6)

    @given(jobs(), st.sampled_from([1e-3, 0.01, 0.05]))
    def test_that_stand_for_many_calls_have_their_share(self, job, finest):
        """A bar errs by no more than the finest thing that is drawn."""
        found = bars(job, CELL, job.start, finest)
        strong = sum(b.share * (b.end - b.start) for b in found)
        assert abs(strong - job.worked) <= finest * len(found)

    def test_show_backward_waiting_at_its_end(self):
        """Because there DDP waits for its last all-reduce."""
        job = Job(0, 1, [wait("backward", 0.2, 0.8, waited=0.25)])
        found = bars(job, CELL, 0, 1e-3)
        assert [bar.share for bar in found] == [1, 1, 0, 1]
        assert [bar.start for bar in found] == pytest.approx([0, 0.2, 0.55, 0.8])
        title = "backward at cell line 3: 200 ms to 800 ms, 600 ms"
        assert found[2].title == f"{title}, of which 250 ms waiting at its end"

    def test_show_a_change_within_a_thousand_short_calls(self):
        """First they wait half of the time, and later most of it."""
        spans = [wait("send", i / 1e3, (i + 0.5) / 1e3) for i in range(500)]
        spans += [wait("recv", i / 1e3, (i + 0.9) / 1e3) for i in range(500, 1000)]
        found = bars(Job(0, 1, spans), CELL, 0, 0.01)
        assert 10 < len(found) < 30
        assert found[2].share == pytest.approx(0.5, abs=0.02)
        assert found[-3].share == pytest.approx(0.1, abs=0.02)

    def test_show_what_was_not_kept(self):
        """Calls that were only counted are no work."""
        job = Job(0, 1, [wait("send", 0.1, 0.2)], dropped=70, dropped_s=0.6)
        *_, last = bars(job, CELL, 0, 1e-3)
        assert (last.start, last.end, last.label) == (0.2, 1, "more calls")
        assert last.share == pytest.approx(0.25)
        assert "70 more calls are counted" in repr(timeline({0: job}, CELL))


class TestPicture:
    """The SVG, its label and the text."""

    def test_tells_the_story_in_words(self):
        """A reader of the text, or of the label, learns who was late and who waited."""
        picture = timeline(straggler(), CELL)
        assert repr(picture).splitlines() == [
            "230 ms on 4 ranks, 71 % of it waiting; rank 0 worked longest, 220 ms",
            "rank  worked  waited  most of it in",
            "0     220 ms  10 ms   all_reduce, cell line 3: 10 ms",
            "1     15 ms   210 ms  all_reduce, cell line 3: 210 ms",
            "2     15 ms   210 ms  all_reduce, cell line 3: 210 ms",
            "3     15 ms   210 ms  all_reduce, cell line 3: 210 ms",
        ]
        label = drawn(picture).get("aria-label")
        assert label.replace(";", "") == " ".join(repr(picture).split()).replace(
            ";", ""
        )
        for line in repr(picture).splitlines()[1:]:
            for cell in re.split("  +", line):
                assert f">{cell}<" in picture.html

    def test_each_bar_has_a_title(self):
        """It names the call, its line, and from when to when it lasted."""
        found = lanes(timeline(straggler(), CELL))
        assert [title for *_, title in found[1]] == [
            "own work: 0 ms to 10 ms, 10 ms",
            "all_reduce at cell line 3: 10 ms to 220 ms, 210 ms",
            "own work: 220 ms to 225 ms, 5.0 ms",
        ]

    def test_a_lane_is_blank_once_its_rank_has_finished(self):
        """Bars end where the job ends; waiting is red, and work is not."""
        done = {0: Job(5, 7, []), 1: Job(5.5, 6, [wait("barrier", 5.6, 5.9)])}
        first, second = lanes(timeline(done, CELL))
        assert [bar[:2] for bar in first] == [(0, 100)]
        assert (second[0][0], second[-1][1]) == (25, 50)
        assert [red for *_, red, _ in second] == [False, True, False]

    def test_the_colors_are_the_pages(self):
        """Letters have the page's color and bars the rank's, light or dark."""
        html = timeline(straggler(), CELL).html
        styles = re.findall('<g style="fill:([^;]*);stroke:([^"]*)"', html)
        assert styles == [(c, c) for c in RANK_COLORS[:4]]
        rest = re.sub('<g style="[^"]*"', "", html)
        assert set(re.findall('(?:fill|stroke)="([^"]*)"', rest)) == {"currentColor"}
        assert " id=" not in html  # or a page with two pictures has it twice

    @pytest.mark.parametrize("name", ["send", "broadcast_object_list"])
    @pytest.mark.parametrize("share", [0.02, 0.1, 0.2, 0.4, 0.9])
    def test_a_label_stands_only_where_it_fits(self, name, share):
        """What fits on a page but not on a phone is hidden on the phone."""
        html = timeline({0: Job(0, 1, [wait(name, 0.01, 0.01 + share)])}, CELL).html
        found = re.search(f"<text [^>]*>{name}</text>", html)
        needed = 7 * len(name)
        assert bool(found) == (share * WIDE > needed + 6 + 0.3 * len(name))
        if found and share * NARROW < needed:
            assert 'class="wide"' in found[0]
        if share == 0.9:
            assert 'class="wide"' not in found[0]
        assert "@container (max-width:600px){.lanes .wide{display:none}}" in html
        assert NARROW + LEFT < 390 < 600 < WIDE + LEFT

    @given(st.lists(jobs(8), min_size=1, max_size=3))
    def test_any_jobs_make_an_svg(self, ranks):
        """Also those without a call, and those that end at once."""
        picture = timeline(dict(enumerate(ranks)), CELL)
        assert len(lanes(picture)) == len(ranks)
        assert len(repr(picture).splitlines()) == 2 + len(ranks)

    def test_64_ranks_with_thousands_of_calls_make_a_small_svg(self):
        """They are merged into what can be seen; nothing is lost from the text."""
        calls = [
            wait(NAMES[i % 4], i / 1e3, (i + 0.1 + i % 7 / 10) / 1e3)
            for i in range(5000)
        ]
        picture = timeline({rank: Job(0, 5.5, calls) for rank in range(64)}, CELL)
        assert len(picture.html) < 300_000
        names = [t.text for t in drawn(picture).findall(f"{SVG}text")][:64]
        assert names == [f"rank {rank}" for rank in range(64)]
        one = timeline({0: Job(0, 5.5, calls)}, CELL)
        assert len(one.html) < 100_000
        assert repr(summary({0: Job(0, 5.5, calls)}, CELL)).endswith(
            "irecv.wait × 1250, cell line 3: 500 ms"
        )

    def test_short_cells_and_cells_without_a_call(self):
        """There is always an axis, and never a division by zero."""
        nothing = timeline({0: Job(3, 3), 1: Job(3, 3)}, CELL)
        assert repr(nothing).splitlines()[0] == "0 ms on 2 ranks, no waiting"
        short = timeline({2: Job(3, 3.001, [])}, CELL)
        head, _, row = repr(short).splitlines()
        assert head == "1.0 ms on rank 2, no waiting"
        assert row.split() == ["2", "1.0", "ms", "0", "ms", "–"]
        marks = re.findall(r">([\d.]+(?: ms)?)</text>", short.html)
        assert marks == ["0", "0.2", "0.4", "0.6", "0.8", "1 ms"]
        with pytest.raises(ValueError, match="no rank"):
            timeline({})
