"""The whole system on one machine: set-up, the embedded log and the supervisor of every process.

Only the command line and the benchmark import it; the processes themselves know nothing of it.
"""
