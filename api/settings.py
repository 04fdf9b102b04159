"""Settings of the API process (`mqlake api`); `conf/api.toml` shows every key."""

from pathlib import Path

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from mqlake.settings import ProcessSettings


class ApiSettings(ProcessSettings):
    """Where the API listens and what it guards."""

    model_config = SettingsConfigDict(env_prefix="MQLAKE_API_")

    host: str = Field(default="127.0.0.1", description="address to listen on")
    port: int = Field(default=8080, ge=1, le=65535, description="TCP port to listen on")
    site: str = Field(
        default="local",
        pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$",
        description="as of the site's gateways; part of the origin of what the API publishes",
    )
    datacenter: int = Field(default=0, ge=0, le=255, description="part of message identifiers")
    data_dir: Path = Field(default=Path("data"), description="data directory of the system")
    token_file: Path = Field(
        default=Path("data/api-token"), description="holds the bearer token of the administrator"
    )
