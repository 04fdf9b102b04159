"""Notification of alarms: to a web server, and to people by mail."""

import asyncio
import json
import smtplib
import ssl
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import format_datetime, make_msgid
from typing import Final, Protocol, Self
from urllib.parse import urlsplit

import httpcore
from pydantic import SecretStr

from api.alarms.materialised import Known
from api.settings import AlarmSettings, MailSettings, WebhookSettings
from mqlake.clock import SystemClock
from mqlake.errors import OperationalError
from mqlake.retry_after import retry_after
from mqlake.security.checked_http import AddressRefused, CheckedBackend, make_ssl_context

_OK: Final = range(200, 300)


class NotTold(OperationalError):  # noqa: N818 - it names the outcome
    """A notice was not accepted, or there was no answer.

    Attributes:
        again_seconds: For so long the receiver wants to be left alone.
    """

    def __init__(self, reason: str, again_seconds: float = 0.0) -> None:
        super().__init__(reason)
        self.again_seconds = again_seconds


@dataclass(frozen=True, slots=True)
class Notice:
    """Notice of an alarm."""

    id: str
    state: str
    """raised or cleared."""
    severity: str
    what: str
    detail: str
    tenant: str | None
    raised_at: str
    """RFC 3339, UTC."""
    cleared_at: str | None

    @classmethod
    def of(cls, known: Known) -> Self:
        alarm = known.alarm
        return cls(
            known.id,
            "raised" if known.is_open else "cleared",
            alarm.severity,
            alarm.what,
            alarm.detail,
            alarm.tenant,
            _time(alarm.raised_at),
            None if alarm.cleared_at is None else _time(alarm.cleared_at),
        )


class Channel(Protocol):
    """A receiver of notices."""

    @property
    def name(self) -> str: ...

    async def send(self, notices: Sequence[Notice]) -> None:
        """Tell of alarms.

        Raises:
            NotTold: The notice was not accepted, or there was no answer.
        """
        ...


def channels(settings: AlarmSettings, site: str) -> tuple[Channel, ...]:
    """Return those whom the settings name.

    Args:
        settings: Settings of alarms.
        site: Whose alarms they are.
    """
    found: list[Channel] = []
    if settings.webhook is not None:
        found.append(AlarmWebhook(settings.webhook, site))
    if settings.mail is not None:
        found.append(Mail(settings.mail, site))
    return tuple(found)


class AlarmWebhook:
    """A web server that takes a POST with JSON: `{"site": …, "alarms": [{…}]}`."""

    name = "webhook"

    def __init__(self, settings: WebhookSettings, site: str) -> None:
        self._settings = settings
        self._site = site

    async def send(self, notices: Sequence[Notice]) -> None:
        settings = self._settings
        url = settings.url.get_secret_value()
        body = json.dumps({"site": self._site, "alarms": [asdict(one) for one in notices]})
        headers = [
            (b"Host", urlsplit(url).netloc.encode()),
            (b"Content-Type", b"application/json"),
            (b"User-Agent", b"mqlake"),
        ]
        if settings.token is not None:
            headers.append((b"Authorization", b"Bearer " + _ascii(settings.token)))
        try:
            async with (
                asyncio.timeout(settings.timeout_seconds),
                # Alarms are rare: no connection is worth keeping.
                httpcore.AsyncConnectionPool(
                    ssl_context=make_ssl_context(settings.ca_certificates),
                    network_backend=CheckedBackend(
                        "alarms.webhook.allowed_networks", settings.allowed_networks
                    ),
                ) as pool,
                # Of the answer nothing is read but its head, and a redirect is none that is good.
                pool.stream("POST", url, headers=headers, content=body.encode()) as response,
            ):
                status = response.status
                again_seconds = retry_after(response.headers, SystemClock().now_ms())
        except TimeoutError as exc:
            seconds = f"{settings.timeout_seconds:g} s"
            raise NotTold(f"the web server does not answer within {seconds}") from exc
        except AddressRefused as exc:
            raise NotTold(str(exc)) from exc
        except (httpcore.NetworkError, httpcore.ProtocolError, OSError) as exc:
            raise NotTold(f"the web server does not answer: {exc!r}") from exc
        if status not in _OK:
            raise NotTold(f"the web server answers {status}", again_seconds)


class Mail:
    """People, who get one mail with all that is new."""

    name = "mail"

    def __init__(self, settings: MailSettings, site: str) -> None:
        self._settings = settings
        self._site = site

    async def send(self, notices: Sequence[Notice]) -> None:
        await asyncio.to_thread(self._send, self._message(notices))

    def _message(self, notices: Sequence[Notice]) -> EmailMessage:
        first, *others = notices
        more = f", and {len(others)} more" if others else ""
        message = EmailMessage()
        message["From"] = self._settings.sender
        message["To"] = ", ".join(self._settings.recipients)
        # A header is one line, also where a name holds line breaks.
        subject = " ".join(f"mqlake {self._site}: {first.state}: {first.what}{more}".split())
        message["Subject"] = subject
        message["Date"] = format_datetime(datetime.now(UTC))
        message["Message-ID"] = make_msgid(domain=f"{self._site}.mqlake.invalid")
        message["Auto-Submitted"] = "auto-generated"
        message.set_content("\n\n".join(map(_paragraph, notices)) + "\n")
        return message

    def _send(self, message: EmailMessage) -> None:
        settings = self._settings
        try:
            with self._connected() as server:
                if settings.security == "starttls":
                    server.starttls(context=make_ssl_context(settings.ca_certificates))
                if settings.username is not None and settings.password is not None:
                    server.login(settings.username, settings.password.get_secret_value())
                server.send_message(message)
        except (smtplib.SMTPException, ssl.SSLError, OSError, ValueError) as exc:
            # The error names the refused user; it never holds a password.
            where = f"{settings.host}:{settings.port}"
            raise NotTold(f"the mail server {where} did not take it: {exc!r}") from exc

    def _connected(self) -> smtplib.SMTP:
        settings = self._settings
        seconds = settings.timeout_seconds
        if settings.security == "tls":
            context = make_ssl_context(settings.ca_certificates)
            return smtplib.SMTP_SSL(settings.host, settings.port, timeout=seconds, context=context)
        return smtplib.SMTP(settings.host, settings.port, timeout=seconds)


def _paragraph(one: Notice) -> str:
    of = "" if one.tenant is None else f" (tenant {one.tenant})"
    lines = [f"{one.state.upper()}: {one.severity}: {one.what}{of}", one.detail]
    lines.append(f"raised {one.raised_at}")
    if one.cleared_at is not None:
        lines.append(f"cleared {one.cleared_at}")
    return "\n".join(filter(None, lines))


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds")


def _ascii(secret: SecretStr) -> bytes:
    return secret.get_secret_value().encode("ascii", errors="replace")
