"""Answers to exercise 7.3 that the check must take or refuse."""

# %% right: with polyfit's weights
import numpy as np


def ex7_3(num_bytes, seconds):
    beta, alpha = np.polyfit(num_bytes, seconds, 1, w=1 / np.array(seconds))
    return alpha, 1 / beta


# %% wrong: the least absolute errors
# + import numpy as np
# = beta, alpha = np.polyfit(num_bytes, seconds, 1)
# = return alpha, 1 / beta
# %% wrong: beta for the bandwidth
# + import numpy as np
# = beta, alpha = np.polyfit(num_bytes, seconds, 1, w=1 / np.array(seconds))
# = return alpha, beta
# %% wrong: the shortest and the longest message alone
# = beta = (seconds[-1] - seconds[0]) / (num_bytes[-1] - num_bytes[0])
# = return seconds[0], 1 / beta
# %% wrong: the weights' square roots
# + import numpy as np
# = beta, alpha = np.polyfit(num_bytes, seconds, 1, w=np.array(seconds) ** -0.5)
# = return alpha, 1 / beta
