r"""ModuleNotFoundError under torchrun: the script is inside a package.

class: launch
symptom: crash
runs on: one process
chapter: ch4_ranks
signature: ModuleNotFoundError: No module named 'pkg'

You see: `No module named 'pkg'`, from a script inside `pkg`, although `python -m
pkg.train` works in the same folder. With relative imports it says `attempted relative
import with no known parent package`.

Cause: Python puts the folder of the script on its path, not the one that you are in.
`torchrun pkg/train.py` therefore finds the files in `pkg/`, but not `pkg` itself.

Cure: `torchrun -m pkg.train` starts it as a module of the package. Installing the
package (`pip install -e .`) cures it for good.

Next time: `print(sys.path[0])` in the script.

Links: https://docs.pytorch.org/docs/stable/elastic/run.html (torchrun's option -m)
"""

# %% given
from pathlib import Path

Path("pkg").mkdir()
Path("pkg/model.py").write_text("num_layers = 3\n")

# %% broken: torchrun pkg/train.py
from pkg.model import num_layers

print(num_layers, "layers")

# %% fixed: torchrun -m pkg.train
from pkg.model import num_layers

print(num_layers, "layers")

# %% signs
# attempted relative import (?:with no known parent|beyond top-level) package
# maybe: No module named '?(?:pkg|src|source|libs?|core|utils?|models?|model|data\w*|tools|configs?|cfg|common|engine|scripts?|projects?|modules|networks?|nets|layers|loss|losses|helpers|train\w*|options?|opts?|metrics?|evaluat\w*|runners?|tests?|misc|main|ops)(?:\.\w+)*'?$
# cannot perform relative import
# with: torchrun|torch[./]distributed|ChildFailedError|\[rank0\]|\[rank1\]|local_rank|--nproc|dist_train|accelerate|deepspeed
# with: torchrun|torch[./]distributed|distributed_c10d|ChildFailedError|DistributedDataParallel|local_rank|local-rank|LOCAL_RANK|init_process_group|world_size|WORLD_SIZE
# with: accelerate|deepspeed|DeepSpeed|ightning|mmcv[./]runner|mmengine|ProcessGroup|NCCL INFO|NCCL WARN|NCCL version|NCCL error|ProcessRaisedException
# with: multiprocessing[./]spawn|mp\.spawn|nn[./]parallel|DataParallel|egatron|orovod|olossal|dist_train|--nproc|node_rank|MASTER_(?:ADDR|PORT)
# with: \[rank0\]|\[rank1\]|\[rank2\]|\[rank3\]|\[rank4\]|\[rank5\]|\[rank6\]|\[rank7\]
