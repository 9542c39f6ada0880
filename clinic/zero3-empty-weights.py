r"""Size mismatch with `torch.Size([0])`: ZeRO-3's weights are empty.

class: checkpoint
symptom: crash
runs on: quoted
chapter: ch6_model_parallel

You see: `size mismatch for ...: copying a param with shape torch.Size([0]) from
checkpoint`, one line for each weight; or the other way round, `the shape in current
model is torch.Size([0])`.

Cause: DeepSpeed's ZeRO-3 keeps 1/W of each weight on a rank and leaves an empty tensor
in the module, which it fills only while the layer runs. If you ask the module itself,
as `model.state_dict()` or `torch.save(model)` does, you save empty tensors; if you load
into a module that ZeRO-3 has already taken over, you load into empty ones.

Cure: let the engine save (`engine.save_checkpoint`, or `save_16bit_model` with
`stage3_gather_16bit_weights_on_model_save`) and rebuild plain weights from its shards
with the script `zero_to_fp32.py` that DeepSpeed puts beside them. Load plain weights
before `deepspeed.initialize`, or inside `deepspeed.zero.GatheredParameters`.

Next time: `{k: v.shape for k, v in torch.load(path).items()}` right after the first
save. A file that is much smaller than the model is the same sign.

Links: https://github.com/huggingface/transformers/issues/20082 (a file of empty weights)
https://github.com/deepspeedai/DeepSpeed/issues/1394 (an older release: torch.Size([1]))
"""

# %% quoted
# RuntimeError: Error(s) in loading state_dict for OPTForCausalLM:
#     size mismatch for model.decoder.layers.25.fc1.weight: copying a param with shape
#     torch.Size([0]) from checkpoint, the shape in current model is torch.Size([10240, 2560]).

# %% broken
engine, *_ = deepspeed.initialize(model=model, config="zero3.json")
torch.save(engine.module.state_dict(), "model.pt")  # each weight is empty here

# %% fixed
engine, *_ = deepspeed.initialize(model=model, config="zero3.json")
engine.save_checkpoint("checkpoints")  # on all ranks; then zero_to_fp32.py

# %% signs
# copying a param with shape torch\.Size\(\[0\]\) from checkpoint
# the shape in current model is torch\.Size\(\[0\]\)
# maybe: 'weight' must be 2-D
# maybe: copying a param with shape torch\.Size\(\[1\]\) from checkpoint, the shape in current model is torch\.Size\(\[\d+, \d+\]\)
# maybe: copying a param with shape torch\.Size\(\[\d+(?:, \d+)*\]\) from checkpoint, the shape in current model is torch\.Size\(\[1\]\) && ZeRO-3|zero3_|zero_stage|deepspeed|DeepSpeed
# with: ZeRO-3|zero\.Init|deepspeed|DeepSpeed|stage3_|zero_stage|zero3_
