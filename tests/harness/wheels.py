"""Packages of a few lines, for tests that install: wheels."""

import zipfile
from pathlib import Path


def wheel(folder, name, version, *, requires=(), modules=None, scripts=(), tag="py3-none-any"):  # noqa: PLR0913
    """Write a wheel into a folder, which is made if it is missing; returns its file name.

    The name has underscores, `modules` maps names to texts, and each of `scripts` reads "name = module:function".
    """
    about = f"{name}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
    files = {f"{module}.py": text for module, text in (modules or {}).items()} | {
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
        f"{about}/WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n",
        f"{about}/entry_points.txt": "\n".join(["[console_scripts]", *scripts, ""]),
    }
    files[f"{about}/RECORD"] = "".join(f"{path},,\n" for path in [*files, f"{about}/RECORD"])
    path = Path(folder) / f"{name}-{version}-{tag}.whl"
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for inside, text in files.items():
            archive.writestr(inside, text)
    return path.name


def torch(folder, version, **options):
    """Write a wheel of a torch that knows its version and nothing else."""
    return wheel(folder, "torch", version, modules={"torch": f'__version__ = "{version}"\n'}, **options)
