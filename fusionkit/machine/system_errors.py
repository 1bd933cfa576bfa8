"""What the operating system refuses, as an error for the user; loads no torch before memory may be the cause."""

from __future__ import annotations

import errno

from fusionkit.errors import FusionkitError, UsageError, first_line

# What a disk or a network file system may answer wherever a command reads or writes.
OF_A_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE)


def system_error(error: Exception) -> FusionkitError | None:
    """The error for a path that the operating system refuses, for a fault of a disk, or for lack of memory, wherever a
    command meets them; None for other ones.
    """
    if isinstance(error, OSError) and error.errno != errno.ENOMEM:
        what = f"cannot use {error.filename or 'a file'}"
        if error.errno in OF_A_DISK:
            remedy = "free space there, or check the disk; finished work is kept"
            return FusionkitError(what, received=error.strerror, remedy=remedy)
        if error.filename is None or error.errno not in (errno.ENAMETOOLONG, errno.EACCES, errno.ELOOP):
            return None
        remedy = "check the path and its permissions" if error.errno == errno.EACCES else "check the path"
        return UsageError(what, received=error.strerror, remedy=remedy)
    if "home directory" in str(error):  # of Path.expanduser
        return UsageError("no such home folder", received=first_line(error), remedy="write the whole path")
    from fusionkit.machine.memory import out_of_memory  # loads torch

    if (lost := out_of_memory(error)) is None:
        return None
    remedy = "free memory, or choose another --device or fewer texts"
    return FusionkitError("memory does not suffice", received=lost, remedy=remedy)
