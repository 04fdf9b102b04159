"""Machines of the parts of a target, as far as the tool can strike them: network, disk, power."""
