"""Sessions of clients: claimed, resumed, held and let go."""
