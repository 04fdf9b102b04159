"""From a delivery to the socket: windows, queues, progress, wills."""
