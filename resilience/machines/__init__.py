"""What the parts of a target run on, as far as the tool can strike it: network, disk, power."""
