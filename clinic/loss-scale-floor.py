r"""Current loss scale already at minimum: every step overflows.

class: AMP
symptom: crash
runs on: quoted
chapter: ch10_precision

You see: many lines `OVERFLOW! Rank 0 Skipping step. Attempted loss scale: ..., reducing to
...`, each half of the one before, then `Current loss scale already at minimum - cannot
decrease scale anymore. Exiting run.` From fairseq `Minimum loss scale reached (0.0001)`.

Cause: a gradient that is inf or NaN makes the scaler skip the step and halve its scale.
A few of these at the start are normal. If no scale helps, the scale is not to blame:
the values themselves are inf or NaN in float16, from a model that was trained in
bfloat16, a learning rate that destroyed the weights, or a broken batch.

Cure: use bfloat16 if the GPU supports it: it has float32's range and needs no scaler.
Otherwise find the first module whose output is not finite, and compute that part in
float32. Reducing the minimum, or fixing the scale, only hides it.

Next time: log the loss scale. One that only falls is a sign long before the end.

Links: https://github.com/deepspeedai/DeepSpeedExamples/issues/418 (on the reward model of DeepSpeed-Chat)
https://github.com/hiyouga/LlamaFactory/issues/251 (after 17 steps of 387)
https://github.com/ymcui/Chinese-LLaMA-Alpaca/issues/534 (ZeRO-2, all ranks)
"""

# %% quoted
# Exception: Current loss scale already at minimum - cannot decrease scale anymore.
# Exiting run.

# %% broken
config = {"fp16": {"enabled": True}}  # weights that were trained in bfloat16

# %% fixed
config = {"bf16": {"enabled": True}}

# %% signs
# loss scale already at minimum
# [Mm]inimum loss scale reached
# FP16 (?:loss )?scale .*(?:minimum|too small)|FP16 minimum loss scale
