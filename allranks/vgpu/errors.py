"""What CUDA says when something is asked of a GPU that it cannot do."""

INVALID_ORDINAL = (
    "CUDA error: invalid device ordinal\nGPU device may be out of range, do you have "
    "enough GPUs?"
)
NOT_PERMITTED = (
    "CUDA error: operation not permitted when stream is capturing\n(while a CUDA graph "
    "is captured, nothing may wait for the GPU or copy between it and the host: "
    ".item(), .cpu(), print, synchronize)"
)
