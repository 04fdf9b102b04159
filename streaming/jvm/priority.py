"""Let a thread of the JVM give way to the others."""

import os
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

NICE: Final = 5
"""Under load it then gets a quarter of what a thread of the router gets."""
_MOST_NAME: Final = 15
"""Characters of a thread's name that Linux keeps."""


def give_way(spark: SparkSession, name: str) -> None:
    """Lower the priority of the Java thread that runs our caller (foreachBatch), on Linux.

    Planning a merge keeps one thread busy for a second; on two processors the router would feel it.

    Args:
        spark: Any session of the JVM.
        name: What the thread is called from now on; that is how it is found among the JVM's.
    """
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    # The callback's calls run in the very thread that called back.
    thread = jvm.java.lang.Thread.currentThread()
    if thread.getName() == name:
        return
    thread.setName(name)
    tasks = Path("/proc") / str(jvm.java.lang.ProcessHandle.current().pid()) / "task"
    for task in tasks.glob("*"):
        try:
            if (task / "comm").read_text(encoding="ascii").strip() == name[:_MOST_NAME]:
                os.setpriority(os.PRIO_PROCESS, int(task.name), NICE)
        except (OSError, UnicodeDecodeError):
            continue  # a thread that has just ended, or is not ours to change
