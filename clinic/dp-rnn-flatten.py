r"""RNN module weights are not part of single contiguous chunk of memory.

class: DataParallel
symptom: slow
runs on: quoted
chapter: ch2_data_parallel

You see: `RNN module weights are not part of single contiguous chunk of memory`, again
and again. Training works, but it is slower and needs more memory.

Cause: cuDNN needs all weights of a recurrent layer in one block, which the layer makes
when it is created or moved. DataParallel's replicas get each weight as a tensor of its
own, so cuDNN has to copy them into a block in every call.

Cure: use DDP, which leaves the module as it is. With DataParallel, make
`self.rnn.flatten_parameters()` the first line of forward, so that the weights are
copied once per forward and not in each call of the layer.

Next time: the warning names no layer. Turn it into an error, by
`warnings.simplefilter("error")`, and the traceback shows the line.

Links: https://github.com/pytorch/pytorch/issues/2460 (the warning, and flatten_parameters)
https://github.com/pytorch/pytorch/issues/32860 (expected with DataParallel; seen in spite of the call)
"""

# %% quoted
# pytorch/aten/src/ATen/native/cudnn/RNN.cpp:1262: UserWarning: RNN module weights
# are not part of single contiguous chunk of memory. This means they need to be
# compacted at every call, possibly greatly increasing memory usage. To compact
# weights again call flatten_parameters().


# %% broken
class Net(nn.Module):
    def forward(self, x):
        return self.rnn(x)[0]


# %% fixed
class Net(nn.Module):
    def forward(self, x):
        self.rnn.flatten_parameters()
        return self.rnn(x)[0]


# %% signs
# RNN module weights are not part of single contiguous chunk of memory
