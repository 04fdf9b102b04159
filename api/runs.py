"""Jobs of all kinds, and what each does, made again of what was asked for."""

from dataclasses import dataclass

from api.history import Deleter
from api.jobs import Job, Jobs, NotResumable, Work
from api.replay.order import ReplayOrder
from api.replay.work import ReplayParts, replay_work
from api.rules.materialised import Entry
from api.rules.work import RuleWorks
from api.tenant_deletion import DeletionParts, deletion_work


@dataclass(frozen=True, slots=True)
class LongRuns:
    """What takes longer than a request."""

    jobs: Jobs
    rules: RuleWorks
    replays: ReplayParts
    history: Deleter
    tenants: DeletionParts

    def resume(self, job: Job) -> Job:
        """Go on with a job that was interrupted, has failed or was cancelled.

        Raises:
            NotResumable: It is none of these, or cannot go on.
            BackfillError: See `RuleWorks.backfill`.
            RerunError: See `RuleWorks.rerun`.
            QueryError: What a replay asks is no query any more.
            MqlakeError: See `Jobs.resume`.
        """
        return self.jobs.resume(job.id, self._work(job))

    def _work(self, job: Job) -> Work:
        request = job.request
        if request is None:
            raise NotResumable(f"a job of the kind {job.kind} cannot be resumed")
        match job.kind:
            case "dry_run":
                return self.rules.dry_run(job.tenant, request)
            case "backfill":
                return self.rules.backfill(self._rule(job), request)
            case "rerun":
                return self.rules.rerun(self._rule(job), request)
            case "replay":
                return replay_work(self.replays, ReplayOrder.from_request(job.tenant, request))
            case "delete_tenant":
                return deletion_work(self.tenants, job.tenant, request["by"])
        raise NotResumable(f"a job of the kind {job.kind} cannot be resumed")

    def _rule(self, job: Job) -> Entry:
        entry = self.rules.view.get(job.tenant, job.rule_id)
        if entry is None:
            raise NotResumable(f"there is no rule {job.rule_id!r} any more")
        return entry
