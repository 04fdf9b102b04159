"""The load: programs that send and receive, clients, records that are there beforehand."""
