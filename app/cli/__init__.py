"""The vramscope command: one module a sub-command."""
