r"""Number of layers should be divisible by the pipeline size.

class: pipeline
symptom: crash
runs on: quoted
chapter: ch6_model_parallel

You see: `AssertionError: num_layers should be divisible by pipeline_model_parallel_size`, at
once, on all ranks.

Cause: the model is cut into stages with the same number of layers. 46 layers over 4
stages leave two over, and a framework that does not check drops them: 30 layers over 4
stages trained as 28 in a release of Megatron-LM.

Cure: choose a different number of stages, or an uneven cut with fewer layers on the
first and the last stage, which also have the embedding and the loss (Megatron-LM:
`--decoder-first-pipeline-num-layers` and `--decoder-last-pipeline-num-layers`).

Next time: sum the layers of all stages, and compare with the model. With virtual
stages, their number times the number of stages has to divide the layers.

Links: https://github.com/modelscope/ms-swift/issues/5737 (46 layers over 4 stages)
https://github.com/NVIDIA/Megatron-LM/issues/1304 (30 layers that became 28, without a word)
https://github.com/NVIDIA/Megatron-LM/issues/468 (the same, with virtual stages)
"""

# %% quoted
# [rank14]: AssertionError: Number of layers should be divisible by the
# pipeline-model-parallel size

# %% broken
# torchrun --nproc-per-node 4 train.py --num-layers 46 \
#     --pipeline-model-parallel-size 4

# %% fixed
# torchrun --nproc-per-node 4 train.py --num-layers 46 \
#     --pipeline-model-parallel-size 4 \
#     --decoder-first-pipeline-num-layers 11 --decoder-last-pipeline-num-layers 11

# %% signs
# (?:[Nn]umber of layers|num_layers)\S* (?:should|must) be divisible by \S*(?:the )?\S*pipeline
# [Nn]umber of layers (?:should|must) be divisible by the pipeline
# number of layers is not divisible by number of layers per virtual
# num_layers must be divisible by transformer_pipeline
