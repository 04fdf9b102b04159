"""The process that carries out the actions of rules."""
