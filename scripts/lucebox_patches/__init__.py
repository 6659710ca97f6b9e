"""Maintenance of our patch series over the pinned llama.cpp.

Standard library only, because it also runs inside an isolated package build; Python 3.10 or newer, git 2.34 or newer,
POSIX.

===============  ====================================================================================
module           concern
===============  ====================================================================================
``errors``       the error tree and the exit codes
``layout``       where things are in a checkout, and its lock
``pin``          ``vendor/upstream.toml``
``series``       ``patches/series``, the patch files and their headers
``objects``      git file entries and manifests, computed without git
``archive``      verifying and unpacking a source distribution
``download``     getting a source distribution with pip; the archive cache
``store``        the git object store: trees, diffs, applying a diff to a tree
``upstreams``    the upstream trees in the store
``tree``         ``vendor/llama.cpp``: its stamp, and bringing it to a wanted content
``chain``        the trees after each patch; carrying a patch to another tree
``workspace``    ``fetch``, ``apply``, ``status``
``export``       the one form of the series on disk
``lint``         the rules of the series
``state``        what an open edit, refresh or rebase has done so far
``session``      ``new``, ``edit``, ``refresh``, ``rebase-onto``, ``abort``, ``drop-upstreamed``
``report``       the report of a rebase
``verify``       building and testing prefixes; ``bisect``
``cli``          the command line
===============  ====================================================================================
"""
