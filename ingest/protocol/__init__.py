"""MQTT on the wire without input or output: bytes to packets and back, standard library only."""
