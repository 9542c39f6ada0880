"""Answers to exercise 6.5 that the check must take or refuse."""


# %% right: irecv and isend, sums of losses, and tags in place of order
def ex6_5(stage, order, pieces, width):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    total, kept, busy = sum(len(y) for _, y in pieces), {}, []

    def receive(like, source, tag):
        buffer = torch.zeros(like)
        dist.irecv(buffer, source, tag=tag).wait()
        return buffer

    def send(tensor, target, tag):
        busy.append((dist.isend(tensor.contiguous(), target, tag=tag), tensor))

    def forward(i):
        x, y = pieces[i]
        if rank:
            x = receive((len(y), width), rank - 1, 2 * i).requires_grad_(True)
        out = stage(x)
        if rank == last:
            out = F.cross_entropy(out, y, reduction="sum")
        else:
            send(out.detach(), rank + 1, 2 * i)
        kept[i] = x, out

    def backward(i):
        x, out = kept[i]
        if rank == last:
            (out / total).backward()
        else:
            out.backward(receive(out.shape, rank + 1, 2 * i + 1))
        if rank:
            send(x.grad, rank - 1, 2 * i + 1)

    for work in order:
        {"F": forward, "B": backward}[work[0]](int(work[1:]))
    for work, _ in busy:
        work.wait()
    if rank == last:
        return sum(float(out) for _, out in kept.values()) / total


# %% wrong: sends that wait, so that two neighbors wait for each other
# - sends.append(dist.isend(output.detach(), rank + 1))
# + dist.send(output.detach(), rank + 1)
# ~ sends.append(dist.isend(piece.grad, rank - 1)) => dist.send(piece.grad, rank - 1)
# %% wrong: adds the means up
# ~ (output, y) * len(y) / total => (output, y)
# %% wrong: the mean of the micro-batches' means
# ~ * len(y) / total => / len(pieces)
# %% wrong: all forward first, whatever the order says
# ~ in order => in sorted(order, key=lambda work: work[0] == "B")
# %% wrong: takes the micro-batches one after the other
# ~ in order => in sorted(order, key=lambda work: (int(work[1:]), work[0] == "B"))
# %% wrong: forgets that what was received needs a gradient
# - piece.requires_grad_()
# %% wrong: calls backward without the gradient that came
# ~ output.backward(gradient) => output.sum().backward()
# %% wrong: holds one micro-batch only
# ~ held[i] => held[0]
# ~ held.pop(i) => held[0]
# %% wrong: every rank takes x
# ~ rank > 0 => rank > 0 and i > 0
# %% wrong: every rank returns a loss
# ~ loss if rank == last else None => loss
# %% wrong: right gradients, and the last micro-batch's share of the loss
# ~ loss + => loss
# %% wrong: runs each stage twice, to hold no graph
# - output = stage(piece)
# + with torch.no_grad():
# +     output = stage(piece)
# - piece, output = held.pop(i)
# + piece, y = held.pop(i)[0], pieces[i][1]
# + output = stage(piece)
# + if rank == last:
# +     output = F.cross_entropy(output, y) * len(y) / total
