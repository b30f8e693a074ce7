"""The architecture that the README promises: what DESIGN calls "never" breaks a contract of import-linter."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import grimp
import pytest
from importlinter.application import use_cases
from importlinter.application.user_options import UserOptions
from importlinter.configuration import configure
from importlinter.domain.contract import registry

import slicemgr

ROOT = Path(slicemgr.__file__).parent.parent
CONFIGURATION = ROOT / "pyproject.toml"

# Forbidden imports: the ID of the contract, the importing and the imported module.
FORBIDDEN = [
    ("layers", "slicemgr.store.tables", "slicemgr.service.slices.slices"),
    ("layers", "slicemgr.store.console_rights", "slicemgr.policy.consoles"),
    ("layers", "slicemgr.store.observations", "slicemgr.drivers.storage.btrfs"),
    ("layers", "slicemgr.store.observations", "slicemgr.record.increments"),
    ("layers", "slicemgr.policy.quota", "slicemgr.drivers.command"),
    ("layers", "slicemgr.policy.access", "slicemgr.store.tables"),
    ("record", "slicemgr.record.sampler", "slicemgr.store.samples"),
    ("layers", "slicemgr.drivers.kernel.cgroup", "slicemgr.store.samples"),
    ("layers", "slicemgr.drivers.kernel.cgroup", "slicemgr.policy.quota"),
    ("layers", "slicemgr.drivers.kernel.cgroup", "slicemgr.record.increments"),
    ("layers", "slicemgr.service.slices.slices", "slicemgr.agent.plan"),
    ("layers", "slicemgr.agent.scheduler", "slicemgr.service.slices.slices"),
    ("layers", "slicemgr.agent.scheduler", "slicemgr.agent_process"),
    ("layers", "slicemgr.service.slices.slices", "slicemgr.web.schemas"),
    ("layers", "slicemgr.web.news", "slicemgr.cli.render.tables"),
    ("layers", "slicemgr.model", "slicemgr.store.tables"),
    ("layers", "slicemgr.errors", "slicemgr.config"),
    ("layers", "slicemgr.loads.sysbench", "slicemgr.errors"),
    ("layers", "slicemgr.hub.signer", "slicemgr.link.join"),
    ("one-machine", "slicemgr.web.state", "slicemgr.hub.signer"),
    ("one-machine", "slicemgr.agent.scheduler", "slicemgr.link.join"),
    ("one-machine", "slicemgr.service.nodes.nodes", "kombu"),
    ("authority-key", "slicemgr.web.state", "slicemgr.certificates.authority"),
    ("authority-key", "slicemgr.service.nodes.joining", "slicemgr.certificates.authority"),
    ("link", "slicemgr.link.join", "slicemgr.service.nodes.nodes"),
    ("web", "slicemgr.web.state", "slicemgr.agent.scheduler"),
    ("web", "slicemgr.web.state", "slicemgr.drivers.command"),
    ("web", "slicemgr.web.state", "slicemgr.client"),
    ("web", "slicemgr.web.state", "subprocess"),
    ("web-sql", "slicemgr.web.pages.slices", "slicemgr.store.tables"),
    ("service", "slicemgr.service.slices.slices", "slicemgr.agent.scheduler"),
    ("service", "slicemgr.service.slices.slices", "slicemgr.drivers.libvirt.hypervisor"),
    ("service", "slicemgr.service.slices.slices", "slicemgr.record.sampler"),
    ("service", "slicemgr.service.slices.slices", "libvirt"),
    ("service", "slicemgr.service.slices.slices", "subprocess"),
    ("http", "slicemgr.service.slices.slices", "flask"),
    ("http", "slicemgr.agent.scheduler", "click"),
    ("cli", "slicemgr.cli.commands.slices", "slicemgr.agent.scheduler"),
    ("cli", "slicemgr.cli.commands.slices", "slicemgr.drivers.command"),
    ("cli", "slicemgr.cli.commands.slices", "slicemgr.service.slices.slices"),
    ("cli", "slicemgr.cli.commands.slices", "slicemgr.store.tables"),
    ("cli", "slicemgr.cli.commands.slices", "subprocess"),
    ("bench", "slicemgr.bench.experiments.scale", "slicemgr.drivers.storage.btrfs"),
    ("bench", "slicemgr.bench.experiments.scale", "slicemgr.store.samples"),
    ("bench", "slicemgr.audit.run", "slicemgr.agent.doctor"),
    ("client", "slicemgr.client.paths", "slicemgr.service.slices.specs"),
    ("client", "slicemgr.client.ssh", "slicemgr.drivers.command"),
    ("client", "slicemgr.wire", "slicemgr.policy.quota"),
    ("libvirt", "slicemgr.agent.observe", "libvirt"),
    ("processes", "slicemgr.agent.apply", "subprocess"),
    ("processes", "slicemgr.drivers.storage.btrfs", "pty"),
    ("iptables", "slicemgr.drivers.network.firewall", "iptc"),
    ("guestfs", "slicemgr.drivers.importer.disk_image", "guestfs"),
    ("pure", "slicemgr.agent.plan", "slicemgr.drivers.command"),
    ("pure", "slicemgr.agent.plan", "slicemgr.agent.observe"),
    ("pure", "slicemgr.agent.repairs", "slicemgr.agent.reconcile"),
    ("pure", "slicemgr.agent.plan", "slicemgr.store.pending"),
    ("pure", "slicemgr.drivers.libvirt.domain_xml", "slicemgr.drivers.libvirt.hypervisor"),
    ("pure", "slicemgr.drivers.network.firewall_rules", "slicemgr.drivers.network.firewall"),
    ("pure", "slicemgr.policy.quota", "slicemgr.drivers.command"),
    ("pure", "slicemgr.record.increments", "slicemgr.drivers.kernel.counters"),
    ("pure-system", "slicemgr.agent.plan", "time"),
    ("pure-system", "slicemgr.agent.repairs", "time"),
    ("pure-system", "slicemgr.drivers.libvirt.domain_xml", "os"),
    ("pure-system", "slicemgr.drivers.network.firewall_rules", "socket"),
    ("pure-system", "slicemgr.policy.access", "sqlalchemy"),
    ("pure-system", "slicemgr.policy.allocate", "random"),
]


@pytest.fixture(scope="module")
def options() -> UserOptions:
    configure()
    found = use_cases.read_user_options(str(CONFIGURATION))
    use_cases._register_contract_types(found)
    return found


def graph_of(parent: Path) -> grimp.ImportGraph:
    """The imports of the package slicemgr below `parent`, of external packages, too."""
    loaded = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == "slicemgr"}
    sys.path.insert(0, str(parent))
    try:
        return grimp.build_graph("slicemgr", include_external_packages=True, cache_dir=None)
    finally:
        sys.path.remove(str(parent))
        for name in [name for name in sys.modules if name.partition(".")[0] == "slicemgr"]:
            del sys.modules[name]
        sys.modules.update(loaded)


@pytest.fixture(scope="module")
def today() -> grimp.ImportGraph:
    return graph_of(ROOT)


@pytest.fixture(scope="module")
def violating(tmp_path_factory: pytest.TempPathFactory) -> Iterator[grimp.ImportGraph]:
    """Of a copy of the package with every forbidden import written into it, and one module that has no layer."""
    parent = tmp_path_factory.mktemp("copy")
    package = parent / "slicemgr"
    shutil.copytree(ROOT / "slicemgr", package, ignore=lambda _, names: [n for n in names if not keeps(n)])
    for _, importer, imported in FORBIDDEN:
        path = parent.joinpath(*importer.split("."))
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        file.write_text(f"{file.read_text()}\n\ndef _forbidden() -> None:\n    import {imported}\n")
    (package / "homeless.py").write_text("")
    yield graph_of(parent)
    shutil.rmtree(parent)


def keeps(name: str) -> bool:
    """Modules and folders; a folder's name has no dot."""
    return name.endswith(".py") or "." not in name


def packages_of(module: str) -> set[str]:
    """The packages around a module."""
    words = module.split(".")
    return {".".join(words[:end]) for end in range(1, len(words))}


def broken(options: UserOptions, graph: grimp.ImportGraph, only: str = "") -> set[str]:
    """The ids of the contracts that the graph breaks, of all or of one."""
    return {
        chosen["id"]
        for chosen in options.contracts_options
        if only in ("", chosen["id"]) and breaks(chosen, options, graph)
    }


def breaks(chosen: dict[str, Any], options: UserOptions, graph: grimp.ImportGraph) -> bool:
    kind = registry.get_contract_class(chosen["type"])
    contract = kind(name=chosen["name"], session_options=options.session_options, contract_options=chosen)
    return not contract.check(deepcopy(graph), verbose=False).kept


def test_the_code_keeps_every_contract(options: UserOptions, today: grimp.ImportGraph) -> None:
    assert broken(options, today) == set()


def test_each_contract_is_broken_by_what_it_forbids(options: UserOptions, violating: grimp.ImportGraph) -> None:
    contracts = {chosen["id"] for chosen in options.contracts_options}
    assert {id for id, _, _ in FORBIDDEN} == contracts, "each contract has an import that shows that it holds"
    assert broken(options, violating) == contracts


@pytest.mark.parametrize(("contract", "importer", "imported"), FORBIDDEN, ids=lambda value: value)
def test_a_forbidden_import_breaks_its_contract(
    contract: str,
    importer: str,
    imported: str,
    options: UserOptions,
    today: grimp.ImportGraph,
    violating: grimp.ImportGraph,
) -> None:
    """With all contracts of the copy, and with this contract only."""
    lines = violating.get_import_details(importer=importer, imported=imported)
    line = next(one for one in lines if one["line_contents"] == f"import {imported}")
    alone = deepcopy(today)
    if imported not in alone.modules:
        alone.add_module(imported, is_squashed=True)
    alone.add_import(**line)
    assert broken(options, alone, contract) == {contract}


def test_a_module_without_a_layer_breaks_the_layers(options: UserOptions, today: grimp.ImportGraph) -> None:
    with_one = deepcopy(today)
    with_one.add_module("slicemgr.homeless")
    assert broken(options, with_one, "layers") == {"layers"}


def test_each_driver_decides_or_acts(options: UserOptions, today: grimp.ImportGraph) -> None:
    """One that is new is put among those that decisions may not use, or is a decision itself."""
    [pure] = [chosen for chosen in options.contracts_options if chosen["id"] == "pure"]
    [system] = [chosen for chosen in options.contracts_options if chosen["id"] == "pure-system"]
    assert pure["source_modules"] == system["source_modules"]
    named = {*pure["source_modules"], *pure["forbidden_modules"]}
    for folder in ("slicemgr.agent", "slicemgr.builder", "slicemgr.drivers", "slicemgr.record"):
        modules = {one for one in today.find_descendants(folder) if not today.find_children(one)}
        assert modules
        assert {one for one in modules if not named & {one, *packages_of(one)}} == set()


def test_no_import_is_hidden_from_the_contracts(options: UserOptions) -> None:
    assert not options.session_options.get("exclude_type_checking_imports")
    assert options.session_options["include_external_packages"]
