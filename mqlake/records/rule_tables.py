"""The tables that rules write to: each is of one tenant, which its name in the lake says.

Users write `rule_<name>` and mean that of their tenant. In the lake it has this name for the tenant
`default`; for others `rule__<hash of the tenant>_<name>`, which is no name that a user can write.
"""

import hashlib
import re
from pathlib import Path
from typing import Final

from mqlake.records.tenants import DEFAULT_TENANT
from mqlake.tables.catalogue import RULE_TABLE_PATTERN, RULE_TABLE_PREFIX, is_there

TENANT_PROPERTY: Final = "mqlake.tenant"
"""Property of such a table in the lake: its tenant. One without was of all tenants together."""
MOST_COLUMNS: Final = 1_000
"""Most columns of a table, with those that all tables of rules have. Columns never go, and each
file, checkpoint and query has them all."""
MOST_TABLES: Final = 1_000
"""Most tables of a tenant, also if its limits allow more. Tables never go with their rules."""
_OF_OTHERS: Final = re.compile(rf"{RULE_TABLE_PREFIX}_[0-9a-f]{{12}}_([a-z][a-z0-9_]{{0,62}})")


def tenant_hash(tenant: str) -> str:
    """Return what tells a tenant's tables from those of others: 12 hexadecimal digits."""
    return hashlib.sha256(tenant.encode()).hexdigest()[:12]


def rule_table(tenant: str, name: str) -> str:
    """Return the name in the lake of a tenant's table.

    Args:
        tenant: Whose.
        name: As users write it, `rule_` and more.
    """
    if tenant == DEFAULT_TENANT:
        return name
    rest = name.removeprefix(RULE_TABLE_PREFIX)
    return f"{RULE_TABLE_PREFIX}_{tenant_hash(tenant)}_{rest}"


def shown_name(table: str) -> str:
    """Undo `rule_table`: return the name as its users write it."""
    found = _OF_OTHERS.fullmatch(table)
    return RULE_TABLE_PREFIX + found[1] if found else table


def written_tables(folder: Path, tenant: str) -> list[str]:
    """Return the tables that a tenant's rules have written, as their action `table` names them."""
    return [
        shown_name(name).removeprefix(RULE_TABLE_PREFIX) for name in rule_tables(folder, tenant)
    ]


def rule_tables(folder: Path, tenant: str | None = None) -> list[str]:
    """Return the names in the lake of the tables that rules have written to.

    Args:
        folder: Folder of the tables.
        tenant: Owner of the tables; None: all tenants.
    """
    names = (path.name for path in folder.glob(f"{RULE_TABLE_PREFIX}*") if is_there(path))
    return sorted(
        name
        for name in names
        if re.fullmatch(RULE_TABLE_PATTERN, shown_name(name))
        and (tenant is None or rule_table(tenant, shown_name(name)) == name)
    )
