"""The links' numbers are NCCL's of a release of this year, everywhere the same."""

import re

from allranks.base.paths import ROOT
from allranks.topics.links import sums

# hwLatencies of Ring and Simple in NCCL 2.30.7's src/graph/tuning.cc: NVLink, PCI, net.
NCCL = {"nvlink4": 3.4, "pcie5": 5.7, "ib400": 14.0}


def test_three_latencies_are_nccls():
    assert {name: sums.LINKS[name].alpha_us for name in NCCL} == NCCL


def test_the_page_links_to_the_release_that_they_are_of():
    page = (ROOT / "book" / "ch7_collectives.md").read_text("utf8")
    [commit] = re.findall(r"NVIDIA/nccl/blob/(\w{40})/src/graph/tuning.cc", page)
    assert commit[:8] == re.search(r"at commit (\w+)", sums.__doc__)[1]
    assert "NCCL 2.30.7" in page and "2.30.7" in sums.__doc__
