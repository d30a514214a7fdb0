"""The optional C++ kernels; everything else about the package is in pyproject.toml.

They are one plain shared object with a C interface: it knows neither Python nor torch, so one build serves
every version of both.  Without a compiler, or where it fails, the package is built without them, and so it is
with ``TACIT_NATIVE=0`` in the environment: the wheel is then one for every platform.
"""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import tomllib
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError, LinkError

NATIVE = Path("src/tacit/native")
# No -march=native: what the processor offers is asked for at run time.  Signed zeros, infinities and the
# order of sums stay what C++ says (no -ffast-math).
FLAGS = [
    "-std=c++17",
    "-O3",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fvisibility=hidden",
    "-g0",
    "-Wno-maybe-uninitialized",
    "-ffp-contract=fast",
]


class BuildKernels(build_ext):
    """Builds ``kernels.so``; with OpenMP where the compiler has it.

    The runtime of GCC is not linked to it: torch brings one, under a name that differs from build to build,
    and ``loading.py`` makes it visible.  A second one beside it would have threads of its own.
    """

    def finalize_options(self) -> None:
        super().finalize_options()
        self.force = True  # seconds, and never an object file of other sources

    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split("."))) + ".so"

    def build_extension(self, extension: Extension) -> None:
        openmp = ["-fopenmp"]
        for threads, runtime in ((openmp, openmp if self.by_clang() else []), (openmp, openmp), ([], [])):
            extension.extra_compile_args = FLAGS + threads
            extension.extra_link_args = runtime
            try:
                super().build_extension(extension)
                return
            except (CompileError, LinkError) as error:
                problem = error
        raise problem

    def by_clang(self) -> bool:
        """Clang calls a runtime of its own, which torch does not bring."""
        command = getattr(self.compiler, "compiler_cxx", None) or ["c++"]
        try:
            done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False)
        except OSError:
            return False
        return "clang" in done.stdout


class AnyPython(bdist_wheel):
    """A wheel with kernels is for a platform, one without for every platform, and both for every Python."""

    def get_tag(self) -> tuple[str, str, str]:
        if not self.distribution.has_ext_modules() or not any(Path(self.bdist_dir).rglob("kernels.so")):
            self.root_is_pure = True
            return ("py3", "none", "any")
        return ("py3", "none", super().get_tag()[2])


def readme() -> str:
    """README.md for an index of packages, where paths mean nothing: links lead to files of this version."""
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    home, version = project["urls"]["Repository"], project["version"]
    text = Path("README.md").read_text(encoding="utf-8")
    text = re.sub(r"(!\[[^\]]*\]\()(?!https?:|#)", rf"\1{home}/raw/v{version}/", text)
    return re.sub(r"(\]\()(?!https?:|#)", rf"\1{home}/blob/v{version}/", text)


digest = runpy.run_path(str(NATIVE / "sources.py"))["digest"](NATIVE)
kernels = Extension(
    "tacit.native.kernels",
    sources=[path.as_posix() for path in sorted(NATIVE.glob("*.cpp"))],
    depends=[path.as_posix() for path in sorted(NATIVE.glob("*.h"))],
    define_macros=[("TACIT_SOURCES", f'"{digest}"')],
    language="c++",
    optional=True,
)
wanted = os.environ.get("TACIT_NATIVE") != "0"
setup(
    long_description=readme(),
    long_description_content_type="text/markdown",
    ext_modules=[kernels] if wanted else [],
    cmdclass={"build_ext": BuildKernels, "bdist_wheel": AnyPython},
)
