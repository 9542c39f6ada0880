r"""You can't train a model loaded with device_map=auto on many ranks.

class: model parallel
symptom: crash
runs on: quoted
chapter: ch6_model_parallel

You see: `ValueError: You can't train a model that has been loaded with
device_map='auto' in any distributed mode.` Where nothing checks this, each rank fills
all GPUs, and they run out of memory.

Cause: `device_map="auto"` puts the layers of one model on all GPUs that a process sees,
for one process. A launcher starts a process for each GPU, and each process is meant to
have a whole model on its own GPU. Both at once would put every model on every GPU.

Cure: choose one of the two. For one process that uses all GPUs in turn, start with
`python`. For a rank on each GPU, leave `device_map` out, or give `{"": local_rank}` for
a quantized model, which has to be loaded where it stays. If the model is too large for
one GPU, use FSDP or ZeRO-3.

Next time: print `model.hf_device_map` on each rank: it should show a single device, and
a different one on each.

Links: https://github.com/huggingface/transformers/issues/31557 (accelerate launch)
https://github.com/QwenLM/Qwen/pull/833 (ZeRO-3, on two ranks)
https://github.com/FreedomIntelligence/HuatuoGPT-II/issues/32 (accelerator.prepare refuses)
"""

# %% quoted
# ValueError: You can't train a model that has been loaded with `device_map='auto'` in any
# distributed mode. Please rerun your script specifying `--num_processes=1` or by
# launching with `python {{myscript.py}}`.

# %% broken
model = AutoModelForCausalLM.from_pretrained(name, device_map="auto")

# %% fixed
local_rank = int(os.environ["LOCAL_RANK"])
model = AutoModelForCausalLM.from_pretrained(name, device_map={"": local_rank})

# %% signs
# loaded with .?device_map=.auto.{0,3} in any distributed mode
