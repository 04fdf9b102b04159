"""Jobs of the API, for people: a bar until they have ended."""

import time
from typing import Any, Final

from mqlake.api_client import ApiClient
from mqlake.errors import OperationalError

_POLL_SECONDS: Final = 0.3


def await_job(api: ApiClient, job: dict[str, Any], *, quiet: bool) -> dict[str, Any]:
    """Show how far a job is until it has ended; Ctrl-C cancels it.

    Raises:
        OperationalError: It has failed, or was cancelled.
    """
    from rich.console import Console

    from cli.shared.progress import progress_bar

    path = f"/jobs/{job['id']}"
    try:
        with progress_bar(Console(stderr=True), quiet=quiet) as bar:
            task = bar.add_task(job["state"], total=1.0)
            while job["state"] in ("queued", "running"):
                time.sleep(_POLL_SECONDS)
                job = api.get(path)
                bar.update(task, completed=job["progress"], description=job["note"] or job["state"])
    except KeyboardInterrupt:
        api.delete(path)
        raise
    if job["state"] != "succeeded":
        raise OperationalError(f"the job has {job['state']}: {job['error'] or 'by request'}")
    return job
