"""The network: names, interfaces, ports, and the variables of a launcher."""

import re
import socket
import sys

import pytest

from allranks.doctor import facts
from tests.allranks.doctor.asking import look, status

CARDS = {"lo": "127.0.0.1", "docker0": "172.17.0.1", "eth0": "10.0.0.5"}
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's interfaces")


@pytest.fixture
def network(monkeypatch):
    """Return a function that sets the interfaces and the host name's addresses."""

    def become(cards, *own):
        monkeypatch.setattr(facts, "interfaces", lambda: cards)
        nobody = lambda: socket.getaddrinfo("", "x", 9)  # noqa: E731
        monkeypatch.setattr(facts, "addresses", (lambda: [*own]) if own else nobody)

    return become


def test_knows_a_slurm_job(monkeypatch):
    for name, value in {"JOB_ID": "7", "NODEID": "1", "NNODES": "4"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    assert "Slurm job 7, node 1 of 4" in look("started")["started"][1]
    monkeypatch.setenv("MASTER_ADDR", "node0")  # as in job scripts
    assert status("variables") == "ok"


def test_a_name_without_an_address(monkeypatch):
    """If the machine does not know its own name, gloo falls back to the loopback."""

    def unknown(*args):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    status, found, fix = look("hostname")["hostname"]
    assert status == "warn" and "Name or service" in found and "/etc/hosts" in fix
    monkeypatch.setenv("MASTER_ADDR", "x" * 300)  # too long for a label
    assert look("rendezvous")["rendezvous"][2] == "unset MASTER_ADDR"
    if sys.platform == "linux":
        assert "gloo takes lo" in look("interfaces")["interfaces"][1]
    monkeypatch.setenv("MASTER_ADDR", "nowhere")
    assert look("rendezvous")["rendezvous"][0] == "fail"


def test_ports(monkeypatch):
    """A port in use is a warning, and an invalid one is a failure."""
    with socket.create_server(("", 0)) as server:
        monkeypatch.setenv("MASTER_PORT", str(server.getsockname()[1]))
        assert look("rendezvous")["rendezvous"][0] == "warn"
        for port in "http", "0", "65536", "-1", "²":
            monkeypatch.setenv("MASTER_PORT", port)
            assert look("rendezvous")["rendezvous"][0] == "fail"


@LINUX
@pytest.mark.parametrize(
    ("cards", "own", "gloo", "nccl"),
    [
        (CARDS, "10.0.0.5", "eth0", "eth0"),
        (CARDS, "127.0.1.1", "lo", "eth0"),
        (CARDS | {"ibp3": "10.1.0.5"}, "10.0.0.5", "eth0", "ibp3"),
        ({"lo": "127.0.0.1"}, "127.0.0.1", "lo", "lo"),
    ],
)
def test_who_takes_which_interface(cards, own, gloo, nccl, network):
    """gloo takes the host name's interface; NCCL InfiniBand, and never Docker's."""
    network(cards, own)
    status, found, _ = look("interfaces")["interfaces"]
    assert status == "ok" and found.endswith(f"gloo takes {gloo}, NCCL {nccl}")


@LINUX
@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("GLOO_SOCKET_IFNAME", "eth0", "ok"),
        ("GLOO_SOCKET_IFNAME", "eth", "fail"),  # gloo needs the whole name
        ("GLOO_SOCKET_IFNAME", "ib0", "fail"),
        ("GLOO_SOCKET_IFNAME", "lo,eth0", "ok"),
        ("GLOO_SOCKET_IFNAME", "^docker", "fail"),  # only NCCL knows this syntax
        ("GLOO_SOCKET_IFNAME", "==lo", "fail"),
        ("GLOO_SOCKET_IFNAME", "=lo,bogus", "fail"),
        ("GLOO_SOCKET_IFNAME", "eth0,bogus", "fail"),
        ("NCCL_SOCKET_IFNAME", "eth", "ok"),
        ("NCCL_SOCKET_IFNAME", "=eth0", "ok"),
        ("NCCL_SOCKET_IFNAME", "=eth", "fail"),
        ("NCCL_SOCKET_IFNAME", "^docker", "ok"),
        ("NCCL_SOCKET_IFNAME", "ib", "fail"),
    ],
)
def test_interfaces_by_name(variable, value, expected, network, monkeypatch):
    """gloo takes whole names; NCCL takes prefixes, =names and ^exceptions."""
    network(CARDS, "10.0.0.5")
    monkeypatch.setenv(variable, value)
    status, _, fix = look("interfaces")["interfaces"]
    assert status == expected
    assert fix == (f"unset {variable}" if expected == "fail" else "")


@LINUX
def test_a_loopback_between_machines(network, monkeypatch):
    """On two nodes, a host name that means 127.0.1.1 gets a warning."""
    network(CARDS, "127.0.1.1")
    monkeypatch.setenv("SLURM_NNODES", "2")
    status, _, fix = look("interfaces")["interfaces"]
    assert (status, fix) == ("warn", "export GLOO_SOCKET_IFNAME=eth0")


@LINUX
def test_the_cure_for_a_name_is_not_what_is_wrong_on_two_machines(network, monkeypatch):
    """The advice is another address, as 127.0.1.1 would keep gloo on the loopback."""
    cards = CARDS | {"ibp3": "10.1.0.5"}
    network(cards)
    fix = look("hostname")["hostname"][2]
    address = re.match(r'echo "(\S+) \S+" \| sudo tee -a /etc/hosts$', fix)[1]
    assert address == "10.1.0.5"
    monkeypatch.setenv("SLURM_NNODES", "2")
    for own, expected in ("127.0.1.1", "warn"), (address, "ok"):
        network(cards, own)
        assert status("interfaces") == expected
        found = look("hostname")["hostname"][1]
        assert ("others do not" in found) == (expected == "warn")
    network({"lo": "127.0.0.1"})
    assert '"127.0.0.1 ' in look("hostname")["hostname"][2]  # there is no other
