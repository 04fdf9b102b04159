"""How Java compiles the programs that run for long."""

from typing import Final

COMPILER_OPTIONS: Final = (
    "-XX:Tier3DelayOn=0",
    "-XX:Tier4InvocationThreshold=20000",
    "-XX:Tier4MinInvocationThreshold=2400",
    "-XX:Tier4CompileThreshold=60000",
    "-XX:Tier4BackEdgeThreshold=160000",
)
"""Both compilers, the second one late: it takes code that has run four times as often as it usually
asks for, and nothing is slowed by counting while it has other work (docs/design/routing.md)."""
