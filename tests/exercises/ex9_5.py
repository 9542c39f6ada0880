"""Answers to exercise 9.5 that the check must take or refuse."""


# %% right: block by block
def ex9_5(documents, size):
    tokens = torch.zeros(size, dtype=torch.int64)
    positions, labels = torch.zeros_like(tokens), torch.full_like(tokens, -100)
    mask, start = torch.eye(size, dtype=torch.bool), 0
    for document in documents:
        end = start + len(document)
        tokens[start:end] = document
        positions[start:end] = torch.arange(end - start)
        if end > start:
            labels[start : end - 1] = document[1:]
        mask[start:end, start:end].fill_(True).tril_()
        start = end
    return tokens, positions, labels, mask


# %% wrong: a causal mask over the whole row
# ~ mask = (owner[:, None] == owner[None]) => mask = torch.ones(size, size).bool()
# %% wrong: blocks that see their own future
# ~ (owner[:, None] == owner[None]).tril() => owner[:, None] == owner[None]
# %% wrong: positions of one long text
# ~ cat([torch.arange(n) for n in lengths]) => arange(size)
# %% wrong: the end of a document has to guess the beginning of the next
# ~ goes_on, tokens => torch.arange(1, size) < sum(map(len, documents)), tokens
# %% wrong: padding looks at nothing
#   mask = (owner[:, None] == owner[None]).tril()
# + mask[sum(map(len, documents)) :] = False
# %% wrong: True where attention is forbidden, as nn.MultiheadAttention has it
# ~ return tokens, positions, labels, mask => return tokens, positions, labels, ~mask
# %% wrong: labels that are not shifted, as some models expect them
# ~ return tokens, positions, labels => return tokens, positions, tokens.clone()
