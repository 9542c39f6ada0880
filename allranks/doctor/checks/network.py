"""The network, and the variables that name the place where ranks meet."""

from __future__ import annotations

import os
import re
import socket
import sys
import time

from allranks.doctor import facts
from allranks.doctor.facts import env, integer
from allranks.doctor.registry import check, warn_if

LAUNCH = "RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"
LAUNCH += "MASTER_ADDR", "MASTER_PORT"  # what torchrun sets


def leaving(names: dict[str, str]) -> list[str]:
    """Return the interfaces that lead to other machines, in NCCL's order."""
    out = [n for n in names if not re.match("lo$|docker|veth|br-|virbr", n)]
    return sorted(out, key=lambda name: not name.startswith("ib"))


@check(
    "hostname",
    "gloo listens at the address that the machine's own name has.",
    seconds=8,
)
def check_hostname() -> tuple[str, ...]:
    """Warn if the machine's name has no address, or takes seconds to look up."""
    start, name = time.perf_counter(), socket.gethostname()
    has = facts.interfaces() if sys.platform == "linux" else {}
    address = [has[name] for name in leaving(has)] + ["127.0.0.1"]
    fix = f'echo "{address[0]} {name}" | sudo tee -a /etc/hosts'
    try:
        own = facts.addresses()
    except OSError as error:
        return "warn", f"{name} has no address: {error}", fix
    found = f"{name} is {', '.join(own)}"
    if all(ip.startswith(("127.", "::1")) for ip in own):
        found += ": ranks on this machine meet there, others do not"
    slow = time.perf_counter() - start > 1
    found += ", but the name server took seconds to say so" if slow else ""
    return warn_if(slow, found, fix)


@check("loopback", "The ranks of one machine meet there.")
def check_loopback() -> tuple[str, ...]:
    """Fail if 127.0.0.1 does not accept a connection."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), 2).close()
    except OSError as error:
        return "fail", f"127.0.0.1: {error}", "sudo ip link set lo up"
    return "ok", "127.0.0.1 answers"


def matches(user: str, words: list[str], names: dict[str, str]) -> bool:
    """Tell whether a value of *_SOCKET_IFNAME names interfaces that exist.

    Args:
        user: gloo, which needs whole names, or NCCL, which also takes their beginnings,
            =names and ^exceptions.
        words: the value, split at its commas.
        names: the interfaces of this machine.
    """
    if user == "gloo":
        return all(word in names for word in words)
    every = [(name, word) for name in names for word in words]
    found = any(name.startswith(word) or word == f"={name}" for name, word in every)
    return found or words[0][:1] == "^"


@check(
    "interfaces",
    "On several machines, gloo and NCCL must use one that joins them.",
    "linux",
    seconds=8,
)
def check_interfaces() -> tuple[str, ...]:
    """Report the interfaces that gloo and NCCL take; fail if a named one is missing."""
    has = facts.interfaces()
    there = f"there are {', '.join(has)}"
    out = leaving(has)
    taken = {"NCCL": (out or ["lo"])[0]}
    try:
        own = facts.addresses()[0]
    except OSError:
        own = "127.0.0.1"  # as gloo falls back to
    taken["gloo"] = next((n for n in has if has[n] == own), "lo")
    for user in "gloo", "NCCL":
        variable = f"{user.upper()}_SOCKET_IFNAME"
        value = env(variable)
        if value and not matches(user, value.split(","), has):
            return "fail", f"{variable}={value}, but {there}", f"unset {variable}"
        taken[user] = value or taken[user]
    found = f"{there}; gloo takes {taken['gloo']}, NCCL {taken['NCCL']}"
    if taken["gloo"] == "lo" and out and env("SLURM_NNODES", "1") != "1":
        fix = f"export GLOO_SOCKET_IFNAME={out[0]}"
        return "warn", f"{found}: it does not leave this machine", fix
    return "ok", found


@check(
    "variables",
    "init_process_group believes them, and waits for ranks that nobody starts.",
)
def check_variables() -> tuple[str, ...]:
    """Warn of a launcher's variables that were set without a launcher."""
    has = {name: env(name) for name in LAUNCH if name in os.environ}
    found = " ".join(f"{name}={value}" for name, value in has.items())
    if not has or env("TORCHELASTIC_RUN_ID"):
        return "ok", "set by torchrun" if has else "none is set"
    if env("SLURM_JOB_ID") and "RANK" not in has:
        return "ok", f"{found}, in a Slurm job"
    return "warn", f"{found}, but not by torchrun", f"unset {' '.join(has)}"


@check(
    "rendezvous",
    "All ranks meet at MASTER_ADDR, where rank 0 opens MASTER_PORT.",
    seconds=8,
)
def check_rendezvous() -> tuple[str, ...]:
    """Fail if the address or the port is not valid; warn if the port is taken."""
    host, port = env("MASTER_ADDR", "localhost"), env("MASTER_PORT", "29500")
    if env("TORCHELASTIC_RUN_ID"):
        return "ok", f"{host}:{port}, of torchrun"
    if not 0 < integer(port) < 2**16:
        return "fail", f"MASTER_PORT={port} is no port", "unset MASTER_PORT"
    try:
        socket.getaddrinfo(host, port)
        socket.create_server(("", int(port))).close()
    except (socket.gaierror, UnicodeError) as error:
        return "fail", f"MASTER_ADDR={host}: {error}", "unset MASTER_ADDR"
    except OSError as error:
        fix = "torchrun --standalone ... takes a free one"
        return "warn", f"port {port}: {error.strerror}", fix
    given = facts.text_of("/proc/sys/net/ipv4/ip_local_port_range").split()
    others = f"; other programs get {'-'.join(given)}" if given else ""
    return "ok", f"port {port} is free{others}"
