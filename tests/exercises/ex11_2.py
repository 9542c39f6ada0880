"""Answers to exercise 11.2 that the check must take or refuse."""


# %% right: inference mode, and a function for a batch
def ex11_2(model, batches):
    @torch.inference_mode()
    def one(x, y):
        logits = model(x)
        return F.cross_entropy(logits, y, reduction="none"), logits.argmax(-1)

    mode = model.training
    model.train(False)
    losses, classes = zip(*(one(x, y) for x, y in batches))
    model.train(mode)
    return torch.cat(losses).mean().item(), torch.cat(classes)


# %% wrong: eval() alone
# - with torch.no_grad():
# + if True:
# %% wrong: collects the logits
# ~ logits.argmax(dim=1) => logits
# ~ torch.cat(classes) => torch.cat(classes).argmax(dim=1)
# %% wrong: a name holds them
# - del logits
# %% wrong: leaves dropout on
# - model.eval()
# %% wrong: leaves the model in eval mode
# - model.train(training)
# %% wrong: trains on, whatever the mode was
# ~ model.train(training) => model.train()
# %% wrong: the mean of means
# ~ , reduction="sum" =>
# ~ total / len(classes) => total / len(batches)
# %% wrong: a tensor
# ~ .item() =>
