"""The whole system on one machine: set-up, the embedded log and the supervisor of every process.

Only the command line may import this package; the processes themselves know nothing of it.
"""
