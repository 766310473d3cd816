"""One forward pass for every decoder family: weights packed for the kernels, and the program that they run."""
