"""Jobs of all kinds, and the work of each, made again of its request."""

from dataclasses import dataclass
from typing import Any

from api.jobs.jobs import Job, Jobs, NotResumable, Work
from api.log.repository import InTheWay
from api.messages.history import Deleter
from api.replay.order import ReplayOrder
from api.replay.work import ReplayParts, replay_work
from api.rules.materialised import Entry
from api.rules.work import RuleWorks
from api.wiring.tenant_deletion import DeletionParts, deletion_work


@dataclass(frozen=True, slots=True)
class LongRuns:
    """Jobs, and the makers of their work."""

    jobs: Jobs
    rules: RuleWorks
    replays: ReplayParts
    history: Deleter
    tenants: DeletionParts

    def start(
        self,
        kind: str,
        tenant: str,
        rule_id: str,
        request: dict[str, Any],
        *,
        is_only: bool = False,
    ) -> Job:
        """Queue a job; its work is made of the request, as it is when it is resumed.

        Args:
            kind: Kind of the job.
            tenant: Owner of the job.
            rule_id: Rule that it is about; empty: none.
            request: The request, as JSON.
            is_only: There may be one of this kind about this rule.

        Raises:
            InTheWay: There is one that has not ended.
            MqlakeError: The request cannot be carried out, see `resume`; or see `Jobs.start`.
        """
        work = self._work(kind, tenant, rule_id, request)
        if is_only and self.jobs.is_under_way(kind, tenant, rule_id):
            raise InTheWay(f"a {kind} of rule {rule_id!r} is under way")
        return self.jobs.start(kind, tenant, rule_id, work, request)

    def resume(self, job: Job) -> Job:
        """Go on with a job that was interrupted, has failed or was cancelled.

        Raises:
            NotResumable: It is none of these, or cannot go on.
            BackfillError: See `RuleWorks.backfill`.
            RerunError: See `RuleWorks.rerun`.
            QueryError: The query of a replay is none any more.
            MqlakeError: See `Jobs.resume`.
        """
        if job.request is None:
            raise _not_resumable(job.kind)
        work = self._work(job.kind, job.tenant, job.rule_id, job.request)
        return self.jobs.resume(job.id, work)

    def _work(self, kind: str, tenant: str, rule_id: str, request: dict[str, Any]) -> Work:
        match kind:
            case "dry_run":
                return self.rules.dry_run(tenant, request)
            case "backfill":
                return self.rules.backfill(self._rule(tenant, rule_id), request)
            case "rerun":
                return self.rules.rerun(self._rule(tenant, rule_id), request)
            case "replay":
                return replay_work(self.replays, ReplayOrder.from_request(tenant, request))
            case "delete_tenant":
                return deletion_work(self.tenants, tenant, request["by"])
        raise _not_resumable(kind)

    def _rule(self, tenant: str, rule_id: str) -> Entry:
        entry = self.rules.view.get(tenant, rule_id)
        if entry is None:
            raise NotResumable(f"there is no rule {rule_id!r} any more")
        return entry


def _not_resumable(kind: str) -> NotResumable:
    return NotResumable(f"a job of the kind {kind} cannot be resumed")
