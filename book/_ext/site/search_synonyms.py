"""What readers say, and what pages say: the synonyms that the search knows.

A line of ``SAME`` has words that mean the same here, so that each finds the others. A
line of ``LEADS`` is read from left to right only: whoever types the left side also
looks for the right. Several words in a row are one expression. Chinese terms of the
glossary need no line, because the search takes them from there.
"""

SAME = """
hang, stuck, freeze, frozen, deadlock, stall, block, never returns, never ends, wait
crash, fail, die, abort, killed
slow, slower, speed, fast, faster, throughput, takes longer
gpu, cuda, device
out of memory, oom, memory error, runs out of memory, not enough memory
node, machine, host, server
multi-gpu, multiple gpus, several gpus, many gpus
resume, restart, continue
load, restore, read
save, write, store
checkpoint, weights file, pth, ckpt
wrong, incorrect, bad
different, differ, differs, not the same, inconsistent, mismatch, diverge
same, identical, equal
random, randomness, seed
augmentation, transform
validation, evaluation, eval, val, test set
accuracy, metric, score
duplicate, repeat, twice
learning rate, lr
batch size, batch_size
effective batch size, global batch, total batch size
parameter, weight
unused, no gradient
dataloader, data loader, workers
sampler, shuffle
sync, synchronise, synchronize
barrier, wait for all ranks
timeout, timed out, time out
port, address already in use
launch, start, run
torchrun, launcher, torch.distributed.launch
mixed precision, amp, fp16, autocast
terminal, ssh, shell
interface, network, socket
collective, communication
pipeline, stage
explode, nan, inf
print, log, output
notebook, jupyter, colab
one, single
drop, worse, lower, decrease, degrade
go down, decrease, converge
difference, compare, choose
idle, empty
split, divide, shard
multi-node, several machines, several nodes, cluster
"""

LEADS = """
deepspeed -> fsdp, ZeRO
horovod -> all_reduce, mpirun
zero -> ZeRO, fsdp
megatron -> tensor parallelism
dp -> DataParallel
ddp -> DistributedDataParallel
too big -> does not fit
vram -> gpu memory
zombie -> left behind, still running
imbalance -> uneven, first gpu full
uneven -> unequal, different number
last batch -> uneven, end of epoch
end of epoch -> uneven, last batch
slurm -> srun
kubernetes -> pod
dataset -> data
same data -> sampler, every rank
all gpus -> every rank
each gpu -> every rank
every gpu -> every rank
gpu 0 -> first gpu, rank 0
first gpu -> gpu 0, device 0
main gpu -> gpu 0, rank 0
master -> rank 0
process -> rank
jumps -> worse
closed -> hangup
close -> sighup, hangup
多卡 -> multi-gpu
单机多卡 -> one node, torchrun
多机 -> multi-node
多节点 -> multi-node
分布式 -> distributed
训练 -> training
卡住 -> hang
卡死 -> hang
卡在 -> hang
不动 -> hang
挂起 -> hang
死锁 -> deadlock
等待 -> wait
显存 -> gpu memory
显存不足 -> out of memory
爆显存 -> out of memory
内存 -> memory
不足 -> out of memory
爆 -> out of memory
溢出 -> overflow
占用 -> in use
不均 -> uneven
均衡 -> balance
报错 -> error
错误 -> error
崩溃 -> crash
变慢 -> slow
很慢 -> slow
更慢 -> slower
速度 -> speed
加速 -> faster
保存 -> save
加载 -> load
读取 -> load
恢复 -> resume
断点 -> checkpoint, resume
权重 -> weights
模型 -> model
损失 -> loss
精度 -> accuracy
准确率 -> accuracy
下降 -> drop
不收敛 -> loss
学习率 -> learning rate
端口 -> port
进程 -> process
线程 -> threads
初始化 -> initialise
超时 -> timeout
通信 -> communication
数据 -> data
采样 -> sampler
打乱 -> shuffle
随机 -> random
种子 -> seed
验证 -> validation
评估 -> evaluation
测试 -> test
结果 -> result
不一致 -> different
不同 -> different
重复 -> duplicate
梯度 -> gradient
参数 -> parameter
主卡 -> gpu 0
第一张卡 -> first gpu
每张卡 -> every gpu
结束 -> end
最后 -> last
启动 -> launch
区别 -> difference
同步 -> synchronise
前缀 -> prefix
单卡 -> single gpu
主机 -> node
节点 -> node
网卡 -> interface
流水线 -> pipeline
混合精度 -> mixed precision
"""


def rules() -> list[list[list[str]]]:
    """Return each rule as [what is typed, what is looked for besides].

    >>> [["deepspeed"], ["fsdp", "ZeRO"]] in rules()
    True
    """
    found = []
    for line in filter(None, SAME.splitlines()):
        same = line.split(", ")
        found.append([same, same])
    for line in filter(None, LEADS.splitlines()):
        typed, others = line.split(" -> ")
        found.append([[typed], others.split(", ")])
    return found
