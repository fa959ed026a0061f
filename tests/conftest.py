"""What holds for all tests, however they were started."""

import signal

import torch

# The models are tiny, and threads that wait for each other cost more than they give.
torch.set_num_threads(1)
# A shell lets what it runs in the background ignore Ctrl-C, and so would every process that a test starts.
signal.signal(signal.SIGINT, signal.default_int_handler)
