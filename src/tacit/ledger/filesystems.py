"""On which file systems may a SQLite ledger be? On those whose locks and memory maps one kernel manages.

SQLite separates writers by file locks, and readers and writers of its write-ahead log by memory that all
processes map.  Where other hosts take part, neither is reliable ("How To Corrupt An SQLite Database File",
section 2), and two writers may both find room under the cap.
"""

from __future__ import annotations

from pathlib import Path

from tacit.errors import PrivacyRefusal

_MOUNTS = Path("/proc/self/mounts")

_NETWORK = {
    "nfs": "locks are advisory and served by a daemon that may be missing; no shared memory between hosts",
    "nfs4": "no shared memory between hosts, and caches that other hosts do not see",
    "cifs": "byte-range locks differ from POSIX ones, and there is no shared memory between hosts",
    "smb3": "byte-range locks differ from POSIX ones, and there is no shared memory between hosts",
    "smbfs": "byte-range locks differ from POSIX ones, and there is no shared memory between hosts",
    "afs": "whole files are cached, and written back when they are closed",
    "9p": "the host of a virtual machine sees neither the locks nor the memory maps of its guest",
    "virtiofs": "the host of a virtual machine sees neither the locks nor the memory maps of its guest",
    "vboxsf": "the host of a virtual machine sees neither the locks nor the memory maps of its guest",
    "vmhgfs": "the host of a virtual machine sees neither the locks nor the memory maps of its guest",
    "prl_fs": "the host of a virtual machine sees neither the locks nor the memory maps of its guest",
    "ceph": "several hosts mount it, and a memory map is not shared between them",
    "lustre": "several hosts mount it, and locks are local to a host unless it is mounted with flock",
    "gpfs": "several hosts mount it, and a memory map is not shared between them",
    "beegfs": "several hosts mount it, and locks are local to a host by default",
    "glusterfs": "several hosts mount it, and a memory map is not shared between them",
    "ocfs2": "several hosts mount it, and a memory map is not shared between them",
    "gfs2": "several hosts mount it, and a memory map is not shared between them",
    "orangefs": "it has no locks",
    "davfs": "it writes files back when they are closed",
}
_LOCAL_FUSE = {"fuse.fuse-overlayfs", "fuse.mergerfs"}  # over local disks, by one process
_ANY_FUSE = "a program stands between, as sshfs or s3fs, that keeps no locks other hosts would see"


def file_system_of(path: Path, mounts: str) -> str | None:
    """The type of the file system that ``path`` is on, by the text of ``/proc/self/mounts``.

    >>> mounts = "/dev/sda1 / ext4 rw 0 0\\nhost:/x /mnt/share nfs4 rw 0 0"
    >>> file_system_of(Path("/mnt/share/ledger.db"), mounts)
    'nfs4'
    """
    best: tuple[int, str] | None = None
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) < 3:
            continue
        point = Path(fields[1].replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\"))
        if path.is_relative_to(point) and (best is None or len(point.parts) >= best[0]):
            best = len(point.parts), fields[2]  # a later mount on the same point hides an earlier one
    return None if best is None else best[1]


def refuse_network(path: Path) -> None:
    """Raise if ``path`` is on a file system that other hosts may write to.

    Where there is no ``/proc/self/mounts``, only paths that name a host (UNC paths) are recognised.

    :raises PrivacyRefusal: naming the file system and the reason.
    """
    real = path.resolve()
    found = file_system_of(real, _MOUNTS.read_text(encoding="utf-8")) if _MOUNTS.exists() else None
    if str(real).startswith("\\\\"):
        found = "smb3"
    reason = _NETWORK.get(found or "")
    if found is not None and found.startswith("fuse.") and found not in _LOCAL_FUSE:
        reason = _ANY_FUSE
    if reason is not None:
        raise PrivacyRefusal(
            f"{str(path)!r} is on a {found} file system: {reason}. Two writers could both find room in the "
            "budget. Put a SQLite ledger on a local disk, or use PostgreSQL."
        )
