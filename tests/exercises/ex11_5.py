"""Answers to exercise 11.5 that the check must take or refuse."""


# %% right: everything by hand, from the last block to the first
def ex11_5(net, make, x, y):
    def step(module):
        optimizer = make(module.parameters())
        optimizer.step()
        optimizer.zero_grad()

    inputs, total = [], 0.0
    with torch.no_grad():
        hidden = net.first(x)
        for block in net.blocks:
            inputs.append(hidden)
            hidden = block(hidden)
    hidden.requires_grad_()
    for part, words in zip(hidden.split(50), y.split(50)):
        logits = net.head(net.norm(part))
        loss = F.cross_entropy(logits, words, reduction="sum") / len(y)
        del logits
        total += loss.item()
        loss.backward()
    step(net.head)
    step(net.norm)
    grad = hidden.grad
    for block in reversed(net.blocks):
        hidden = inputs.pop().requires_grad_()
        block(hidden).backward(grad)
        grad = hidden.grad
        step(block)
    net.first(x).backward(grad)
    step(net.first)
    return total


# %% wrong: the plain step
# = optimizer = make(net.parameters())
# = loss = F.cross_entropy(net(x), y)
# = loss.backward()
# = optimizer.step()
# = return loss.item()
# %% wrong: all logits at once
# ~ hidden.split(64), y.split(64) => [hidden], [y]
# %% wrong: chunks of the loss without a checkpoint
# ~ total + again(loss_of, *chunk) => total + loss_of(*chunk)
# %% wrong: keeps the blocks' activations
# ~ again(block, hidden) => block(hidden)
# %% wrong: keeps all gradients until the end
# ~ partial(step, make([p])) => lambda p: None
# ~ loss.backward() => (loss.backward(), make(net.parameters()).step())
# %% wrong: the mean of the chunks' means
# ~ , reduction="sum" =>
# ~ total / len(y) => total / len(y.split(64))
# %% wrong: cuts the sample
# ~ hidden, total = net.first(x), 0 => result = 0
# - for block in net.blocks:
# - hidden = again(block, hidden)
# - for chunk in zip(hidden.split(64), y.split(64)):
# - total = total + again(loss_of, *chunk)
# - loss = total / len(y)
# - loss.backward()
# + for a, b in zip(x.split(64), y.split(64)):
# +     loss = F.cross_entropy(net(a), b) * len(b) / len(y)
# +     result += loss.item()
# +     loss.backward()
# ~ loss.item() => result
# %% wrong: frozen embeddings
# ~ net.first(x), 0 => net.first(x).detach().requires_grad_(), 0
# %% wrong: a closure that finds the last block in backward, whichever it was
# ~ again(block, hidden) => again(lambda h: block(h), hidden)
# %% wrong: computes each block twice
# ~ again(block, hidden) => again(lambda h, b=block: (b(h) + b(h)) / 2, hidden)
# %% wrong: steps twice
# ~ optimizer.step() => (optimizer.step(), optimizer.step())
