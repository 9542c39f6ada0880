r"""Top-k compression drops small gradients: no error feedback.

class: silent wrong
symptom: silent
runs on: 2 ranks
chapter: ch8_ddp_by_hand
signature: second weight is 0\.00, not about 1
beyond: With or without error feedback, a compressed gradient is not the mean of the ranks' gradients, so the mean proves nothing.

You see: training with top-k compression starts well and then stands still, at a loss
that is too high. Some weights hardly move at all.

Cause: each rank sends the values of its gradient that are largest in magnitude. Here
the ranks disagree about the first weight: their gradients are +10 and −10, so these are
sent in every step, and they cancel. Both ranks agree that the second weight should grow,
but 1 is never among the largest, so this is thrown away, step after step.

Cure: keep what was not sent and add it to the next gradient (error feedback). After
eleven steps the second weight's part has grown to 11, and is sent. What is sent and what
is kept must together be the whole: take out of the memory what the rank itself has sent,
not the mean over the ranks.

Next time: count in how many of the last thousand steps each weight was sent, and compare
the loss with a run that does not compress.

Links: https://github.com/sands-lab/grace/issues/10 (a compressor whose memory was never used)
https://github.com/sands-lab/grace/issues/19 (what the memory is for)
https://github.com/epfml/powersgd/issues/3 (which error is fed back)
"""

# %% given
target = torch.tensor([1.0 - 2 * rank, 1.0])  # the ranks agree on the second only
stiff = torch.tensor([10.0, 1.0])
w, memory = torch.zeros(2), torch.zeros(2)


def largest(gradient):
    keep = gradient.abs() == gradient.abs().max()
    return gradient * keep


# %% broken
for _ in range(30):
    sent = largest(stiff * (w - target))
    total = sent.clone()
    dist.all_reduce(total)
    w -= 0.1 * total / world_size
print("weights", *(f"{value:.2f}" for value in w))

# %% fixed
for _ in range(30):
    memory += stiff * (w - target)
    sent = largest(memory)
    memory -= sent  # what is not sent stays for later
    total = sent.clone()
    dist.all_reduce(total)
    w -= 0.1 * total / world_size
print("weights", *(f"{value:.2f}" for value in w))

# %% invariant: the second weight comes near to the minimum of both ranks' losses
got, want = w[1].item(), 1
assert abs(got - want) < 0.5, f"second weight is {got:.2f}, not about {want}"
