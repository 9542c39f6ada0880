"""What makes a message evidence: whose log it is, its keys, and who ended the job.

book/_static/diagnose.js asks the same, so a change belongs in both.
"""

import re

from allranks.diagnose.search import TRIES
from allranks.diagnose.text import Log, bare

# As they appear in a log without its spaces. Each names torch, or what is built on it.
TORCH = "torch Torch c10d ProcessGroup DistributedDataParallel FSDP local_rank: [rank0]"
TORCH += " [rank1] [rank2] [rank3] [default0] pt_main_thread pt_data_worker deepspeed"
TORCH += " DeepSpeed ightning egatron accelerate/ acceleratelaunch mmengine mmcv"
OTHERS = "tensorflow XlaRuntimeError jaxlib mxnet MXNet paddle"
_INTERRUPTS = "KeyboardInterrupt", "deathsignal", "gotsignal:2", "SIGINT"
_INTERRUPT = re.compile(
    r"^KeyboardInterrupt\b|Received (?:2|Signals\.SIGINT) death signal"
    r"|got signal: 2\b|closing signal SIGINT|Signal 2 \(SIGINT\)"
)
_TRACEBACK = "Traceback (most recent call last)"
STACK = 200  # lines of a traceback, at most
_LISTS = "issingkey(s)instate_dict:", "nexpectedkey(s)instate_dict:"
_KEYS = re.compile(rb'(?:"[^"]*",?)*')
_KEY = re.compile(rb'"([^"]+)"')


def ours(log: Log) -> bool:
    """Tell whether a log is of torch; any program may be killed, for example."""
    return any(log.find(word) >= 0 for word in TORCH.split())


def foreign(log: Log) -> bool:
    """Tell whether a log is of another library, which may use NCCL too."""
    return any(log.find(word) >= 0 for word in OTHERS.split()) and not ours(log)


def meet(log: Log, prefix: str) -> bool:
    """Tell whether missing keys are unexpected ones with, or without, a prefix.

    True if the log shows only one of the two lists, so that they cannot be compared.
    """
    missing, unexpected = (_keys(log, word) for word in _LISTS)
    if not missing or not unexpected:
        return True
    cut = prefix.encode()
    return any(
        key.replace(cut, b"") in other
        for keys, other in ((missing, unexpected), (unexpected, missing))
        for key in keys
        if cut in key
    )


def _keys(log: Log, word: str) -> set[bytes]:
    """Return the keys that follow a word."""
    found, at = set(), -1
    for _ in range(TRIES):
        if (at := log.find(word, at + 1)) < 0:
            break
        found.update(_KEY.findall(_KEYS.match(log.squeezed, at + len(word))[0]))
    return found


def ended(log: Log) -> dict[int, int]:
    """Find where somebody ended the job: the line, by the number of each such log."""
    found = {}
    for word in _INTERRUPTS:
        at = -1
        for _ in range(TRIES):
            if (at := log.find(word, at + 1)) < 0:
                break
            line = log.line_at(at)
            if _INTERRUPT.search(bare(log.lines[line])):
                file = log.file(line)
                begin = max(log.begins[file], line - STACK)
                stack = range(line, begin - 1, -1)
                heads = (i for i in stack if _TRACEBACK in log.lines[i])
                line = next(heads, line)
                found[file] = min(line, found.get(file, line))
    return found
