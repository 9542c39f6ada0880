"""What to look for when a tensor is not the same on all ranks."""

WHY = {
    "value": "It is not a value of all ranks: was it reduced to one rank, read before "
    "wait(), or reduced in a group without some?",
    "parameter": "Replicas that start or step apart stay apart: were weights loaded or "
    "edited on one rank, changed after the wrap, or are they synchronised by nobody? "
    "Ranks that hold other parts of the model (pipeline stages) need their own group=.",
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
