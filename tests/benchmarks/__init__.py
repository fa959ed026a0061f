"""Speed and memory as ratios to named peers: `make bench`."""
