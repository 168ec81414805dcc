"""What runs inside the sandbox: the zygote, a program's process, and the kernel's locks.

These modules need the standard library alone and import nothing else of the package: their sources
are sent to the sandbox, where the package itself cannot be read.
"""
