"""What is compared, and what to look for when it is not the same on all ranks."""

OUTSIDE = "optimizer's parameter outside of the model, group"

KINDS = {  # in the order of cause and effect: what is first is named first
    "gradient": "gradients",
    "optimizer state": "optimizer",
    OUTSIDE: "parameters",
    "parameter": "parameters",
    "buffer": "buffers",
    "attribute": "buffers",
}

WHY = {
    OUTSIDE: "The optimizer holds it, and the wrapped model does not, as with a "
    "criterion that has weights: nobody synchronises its gradient. Wrap the criterion "
    "in DDP too; or broadcast its weights once and all_reduce its gradients in each "
    "step. If it is a rank's own part: "
    'ignore=("optimizer 0",).',
    "value": "It is not a value of all ranks: was it reduced to one rank, read before "
    "wait(), or reduced in a group without some?",
    "parameter": "Replicas that start or step apart stay apart: were weights loaded or "
    "edited on one rank, changed after the wrap, or are they synchronised by nobody?",
    "buffer": "",
    "attribute": " It is neither a parameter nor a buffer, so nobody sends it from one "
    "rank to the others: register_buffer, or make it alike on all ranks.",
    "optimizer state": "Equal gradients from equal states give equal states: was it "
    "loaded on one rank, or did one rank skip a step?",
    "gradient": "After the exchange every rank must hold one gradient. Nobody "
    "synchronises this one: was it added or unfrozen after the wrap, was the forward "
    "not through the wrapper (.module), the backward inside of no_sync or by "
    "autograd.grad, or clipped by a local norm?",
}
