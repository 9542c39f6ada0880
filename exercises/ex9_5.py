"""Pack documents into a row.

Ranks: 1
Minutes: 15

`documents` is a list of token tensors (int64), with at most `size` tokens in all. Some
documents may be empty. Put them one after another into one row, and fill the rest of
the row with token 0. The model must treat each document as if it were alone. Return
four tensors:

- `tokens` (T,), int64, where T is `size`;
- `positions` (T,), int64: each document counts from 0, and padding has 0;
- `labels` (T,), int64: the token that follows in the same document, or −100 where there
  is none;
- `mask` (T, T), bool, as `F.scaled_dot_product_attention` wants it: `mask[q, k]` says
  that q may look at k. A token looks at itself and at what comes before it in its
  document. Padding looks only at itself.

Hint 1: Give each token the number of its document. What do two tokens have in common if
one may look at the other?
Hint 2: The mask is true where the numbers are equal and `k <= q`. With a number of its
own for each place of padding, this holds for padding too.
Hint 3: `owner = torch.repeat_interleave(torch.arange(n), lengths)` numbers the tokens,
`owner[:, None] == owner[None]` compares all pairs, and `.tril()` cuts off the future.
"""


# %% solution
def ex9_5(documents, size):
    """Return (tokens, positions, labels, mask) of a row that holds the documents."""
    lengths = [len(document) for document in documents]
    lengths += [1] * (size - sum(lengths))  # each place of padding is by itself
    pad = torch.zeros(size, dtype=torch.int64)
    tokens = torch.cat([*documents, pad])[:size]
    owner = torch.repeat_interleave(
        torch.arange(len(lengths)), torch.tensor(lengths, dtype=torch.int64)
    )
    positions = torch.cat([torch.arange(n) for n in lengths])
    goes_on = owner[1:] == owner[:-1]
    labels = torch.full((size,), -100)
    labels[:-1] = torch.where(goes_on, tokens[1:], -100)
    mask = (owner[:, None] == owner[None]).tril()
    return tokens, positions, labels, mask


# %% check
CASES = {  # the lengths of the documents, and the size of the row
    "one document that fills the row": ([5], 5),
    "two documents": ([3, 4], 7),
    "padding": ([3, 2], 8),
    "a document of one token": ([1, 4, 1], 7),
    "an empty document": ([2, 0, 3], 6),
    "documents of one length": ([3, 3, 3], 9),
    "padding alone": ([], 3),
}


def attend(tokens, positions, mask):
    """Return what one layer of attention makes of a row."""
    table = torch.randn(2, 64, 8, generator=dice(5), dtype=torch.double)
    x = (table[0][tokens] + table[1][positions])[None, None]
    return F.scaled_dot_product_attention(x, x, x, attn_mask=mask)[0, 0]


def check(answer, case):
    seed = dice(9)
    for name, (lengths, size) in case.each(CASES):
        documents = [torch.randint(1, 50, (n,), generator=seed) for n in lengths]
        with Untouched(documents=documents):
            got = answer(list(documents), size)
        if not isinstance(got, (tuple, list)) or len(got) != 4:
            raise Wrong(f"it returned a {type(got).__name__}, not four tensors.")
        judge(got, documents, lengths, size)


def judge(got, documents, lengths, size):
    """Compare each tensor, and attention over the row with that over each alone."""
    tokens, positions, labels, mask = got
    used, spots = sum(lengths), [*lengths, *[1] * (size - sum(lengths))]
    row, places, following, want = solution(documents, size)
    across = torch.cat([row[1:], torch.tensor([-100])])
    inside = torch.where(torch.arange(size) < used - 1, across, -100)
    compare("`tokens`", tokens, row, {})
    compare("`positions`", positions, places, {
        "They go on over the documents' borders.": torch.arange(size),
        "They go on in the padding.":
            torch.cat([*map(torch.arange, [*lengths, size - used])]),
    })  # fmt: skip
    compare("`labels`", labels, following, {
        "The last token of a document has to guess the next document.": inside,
        "These are the labels of one long text, padding included.": across,
        "They are not shifted: each token is asked for itself.": row,
    })  # fmt: skip
    real, causal = torch.arange(size) < used, torch.ones(size, size).bool().tril()
    compare("`mask`", mask, want, {
        "Tokens look at earlier documents: this is causal, and no more.": causal,
        "Tokens look at earlier documents; only padding is hidden.":
            causal & (real | torch.eye(size).bool()),
        "Tokens look into the future of their document.": want | want.T,
        "It is upside down: k looks at q.": want.T,
        "It is the opposite: True has to mean “may look”.": ~want,
        "Padding looks at nothing, and a softmax over nothing is NaN.":
            want & real & real[:, None],
    })  # fmt: skip
    outs = attend(tokens, positions, mask).split(spots)
    for i, (document, out) in enumerate(zip(documents, outs)):
        n = len(document)
        one = attend(document, torch.arange(n), torch.ones(n, n).bool().tril())
        expect(f"what attention makes of document {i}", out, one)
