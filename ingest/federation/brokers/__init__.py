"""Federation of sites over their MQTT brokers, of whatever make: a distribution of its own."""
