# SPDX-License-Identifier: GPL-2.0
"""A writer of cpio archives as the kernel reads them (format "newc")."""

import os
import stat


class Writer:
    """Entries are owned by root, whoever owns the file on the host."""

    def __init__(self, out):
        self.out = out
        self.inode = 0
        self.dirs = set()

    def _entry(self, name, mode, data=b""):
        self.inode += 1
        encoded = name.encode() + b"\0"
        fields = (self.inode, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(encoded), 0)
        head = b"070701" + b"".join(b"%08X" % f for f in fields) + encoded
        self.out.write(head + b"\0" * (-len(head) % 4))
        self.out.write(data + b"\0" * (-len(data) % 4))

    def folder(self, name):
        """Adds a folder and its parents, once."""
        if name and name not in self.dirs:
            self.folder(os.path.dirname(name))
            self.dirs.add(name)
            self._entry(name, stat.S_IFDIR | 0o755)

    def data(self, name, data, mode=0o644):
        self.folder(os.path.dirname(name))
        self._entry(name, stat.S_IFREG | mode, data)

    def file(self, name, path):
        with open(path, "rb") as source:
            self.data(name, source.read(), stat.S_IMODE(os.stat(path).st_mode) | 0o444)

    def tree(self, name, path):
        """Adds all regular files and symlinks below path."""
        self.folder(name)
        for entry in sorted(os.scandir(path), key=lambda e: e.name):
            inside = f"{name}/{entry.name}"
            if entry.is_symlink():
                self._entry(inside, stat.S_IFLNK | 0o777, os.readlink(entry.path).encode())
            elif entry.is_dir():
                self.tree(inside, entry.path)
            elif entry.is_file():
                self.file(inside, entry.path)

    def end(self):
        self._entry("TRAILER!!!", 0)
        self.out.write(b"\0" * (-self.out.tell() % 512))
