"""Settings of all tests."""

import torch

# Tiny tensors: a second thread only waits, and on shared cores it waits by spinning.
torch.set_num_threads(1)
