"""Who waited in a collective or for a message, where, and for whom."""

from collections.abc import Iterator

from allranks.base.report import name_ranks
from allranks.rehearse.findings import Record, jobs
from allranks.rehearse.lines import short

NOBODY: Record = {"last_call": None}
TIMEOUT = "Watchdog caught collective operation timeout"


def waits(records: list[Record]) -> Iterator[str]:
    """Yield a sentence for each call that ranks waited in until the watchdog bit.

    Whoever has begun the same collective of the same group waited, too. The others of
    the group did not come, and each stood somewhere else.
    """
    for job in jobs(records):
        yield from _of_job({r["rank"]: r for r in job if r["rank"] is not None})


def _of_job(ranks: dict[int, Record]) -> Iterator[str]:
    told = set()
    for record in ranks.values():
        call = record["last_call"]
        hung = call and record["error"] and TIMEOUT in record["error"]["text"]
        if not hung or (call["peer"] is None and _key(call) in told):
            continue
        told.add(_key(call))
        came = [r for r in call["group"] if _key(ranks.get(r, NOBODY)) == _key(call)]
        late = [rank for rank in call["group"] if rank not in came]
        which = f"{call['op']}, call {call['number']} of {name_ranks(call['group'])}"
        if call["peer"] is not None:
            came, late, which = [record["rank"]], [call["peer"]], call["op"]
        lines = dict.fromkeys(short(ranks[r]["last_call"]["line"]) for r in came)
        where = " and ".join(filter(None, lines)) or "torch's own code"
        for_whom = name_ranks(late) if late else "its end"
        stood = "".join(f"; rank {rank} {_stood(ranks.get(rank))}" for rank in late)
        yield f"{name_ranks(came)} waited at {where} in {which}, for {for_whom}{stood}"


def _key(of: Record) -> tuple:
    """Return what a call has in common with those of other ranks that meet in it."""
    call = of.get("last_call", of) or {}
    return tuple(call.get(name) for name in ("name", "number", "peer"))


def _stood(record: Record | None) -> str:
    """Say where a rank was that others waited for."""
    if record is None:
        return "left no record"
    if record["error"] and TIMEOUT not in record["error"]["text"]:
        return f"had failed at {short(record['error']['line'])}"
    call = record["last_call"]
    if record["error"] and call:
        group = name_ranks(call["group"])
        return f"was in {call['op']} of {group} at {short(call['line'])}"
    if record["stands"] and not record["ended"]:
        return f"stood at {short(record['stands'])}"
    return "had ended"
