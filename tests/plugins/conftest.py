"""Fixtures for tests of packages that add systems. The toy's own tests need the toy installed, so they run in a process."""

from pathlib import Path

import pytest

from tests.plugins.packages import TOY, TOY_BROKER, TOY_SQL, Register, Shell, install

collect_ignore = ["toy", "toymq", "toysql"]


@pytest.fixture(scope="session")
def toy_packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the toy, once for all tests."""
    target = tmp_path_factory.mktemp("toy") / "packages"
    install(TOY, target)
    return target


@pytest.fixture(scope="session")
def toy_sql_packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the toy database, once for all tests."""
    target = tmp_path_factory.mktemp("toysql") / "packages"
    install(TOY_SQL, target)
    return target


@pytest.fixture
def sql_shell(tmp_path: Path, toy_sql_packages: Path) -> Shell:
    """Run commands in an empty folder, where the toy database is installed."""
    return Shell(tmp_path, toy_sql_packages)


@pytest.fixture
def broker_shell(tmp_path: Path) -> Shell:
    """Run commands in an empty folder, where the toy broker is installed."""
    install(TOY_BROKER, tmp_path / "packages")
    return Shell(tmp_path, tmp_path / "packages")


@pytest.fixture
def shell(tmp_path: Path, toy_packages: Path) -> Shell:
    """Run commands in an empty folder, where the toy is installed."""
    return Shell(tmp_path, toy_packages)


@pytest.fixture
def bare(tmp_path: Path) -> Shell:
    """Run commands in an empty folder, where only what `register` adds is installed."""
    packages = tmp_path / "packages"
    packages.mkdir()
    return Shell(tmp_path, packages)


@pytest.fixture
def register(bare: Shell) -> Register:
    """Add a package as an installer would: a module, and an entry point for a scheme."""

    def add(package: str, scheme: str, module: str, *, value: str = "") -> None:
        name = package.replace("-", "_")
        (bare.packages / f"{name}.py").write_text(module)
        info = bare.packages / f"{name}-0.1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 0.1.0\n")
        (info / "entry_points.txt").write_text(f"[onceonly.systems]\n{scheme} = {value or f'{name}:SYSTEM'}\n")

    return add
