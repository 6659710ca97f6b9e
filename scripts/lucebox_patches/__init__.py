"""Maintenance of our patch series over the pinned llama.cpp.

Standard library only, because it also runs inside an isolated package build; Python 3.10 or newer, POSIX.

===============  ====================================================================================
module           concern
===============  ====================================================================================
``errors``       the error tree and the exit codes
``pin``          ``vendor/upstream.toml``
``series``       ``patches/series``, the patch files, the series hash
``objects``      git object ids and manifests, computed without git
``archive``      verifying and unpacking the source distribution
``download``     getting the source distribution with pip; the archive cache
``gitapply``     one patch onto one directory with ``git apply``
``stamp``        ``vendor/llama.cpp/.lucebox-stamp.json``
``sync``         bringing a directory to a wanted content without touching what is already right
``workspace``    the operations ``fetch``, ``apply`` and ``status``
``cli``          the command line
===============  ====================================================================================
"""
