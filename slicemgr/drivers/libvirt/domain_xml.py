"""The libvirt domain of a sliver, by one pure function for both types.

container_xml and machine_xml add the parts that only one type has.
"""

from __future__ import annotations

from xml.etree import ElementTree as ET

from slicemgr import names
from slicemgr.drivers.libvirt import container_xml, machine_xml
from slicemgr.drivers.libvirt.element import element
from slicemgr.drivers.libvirt.host import Host
from slicemgr.model import KIB, Init, Sliver, SliverType

NAMESPACE = "https://slicemgr.example/sliver/1"  # of slicemgr's element in <metadata>; not an address

ET.register_namespace("slicemgr", NAMESPACE)


def domain_xml(sliver: Sliver, host: Host) -> str:
    """The XML of the domain of `sliver` on the node `host`, for virDomainCreateXML."""
    domain, devices = ET.Element("domain"), ET.Element("devices")
    _identity(domain, sliver)
    tune = _limits(domain, sliver)
    link = _link(sliver, host)
    match sliver.type:
        case SliverType.LXC:
            container_xml.complete(domain, tune, devices, link, sliver, host)
        case SliverType.KVM:
            machine_xml.complete(domain, tune, devices, link, sliver, host)
    element(domain, "clock", offset="utc")
    element(domain, "on_poweroff", "destroy")
    element(domain, "on_reboot", "restart")
    element(domain, "on_crash", "destroy")
    devices.append(link)
    domain.append(devices)
    ET.indent(domain)
    return ET.tostring(domain, encoding="unicode") + "\n"


def host_memory(sliver: Sliver, host: Host) -> int:
    """The memory of the host that the sliver may use, in bytes."""
    match sliver.type:
        case SliverType.LXC:
            return sliver.limits.memory
        case SliverType.KVM:
            return sliver.limits.memory + machine_xml.OVERHEAD[host.acceleration]


def _identity(domain: ET.Element, sliver: Sliver) -> None:
    element(domain, "name", names.domain(sliver.id))
    element(domain, "uuid", names.domain_uuid(sliver.id))
    metadata = element(domain, "metadata")
    ours = element(metadata, f"{{{NAMESPACE}}}sliver", id=sliver.id, generation=sliver.generation)
    if sliver.init is not Init.MINIMAL:
        ours.set("init", sliver.init)


def _limits(domain: ET.Element, sliver: Sliver) -> ET.Element:
    """Add the limits that both types express alike. Return the element <cputune>, which the type completes."""
    limits = sliver.limits
    element(domain, "memory", limits.memory // KIB, unit="KiB")
    element(domain, "vcpu", max(1, -int(-limits.cpu // 1)))
    if limits.io_weight is not None:
        element(element(domain, "blkiotune"), "weight", limits.io_weight)
    tune = element(domain, "cputune")
    element(tune, "shares", limits.cpu_shares)
    return tune


def _link(sliver: Sliver, host: Host) -> ET.Element:
    """A routed point-to-point link without a bridge, with the same host side for both types."""
    link = ET.Element("interface", type="ethernet")
    element(link, "mac", address=names.mac(sliver.id))
    source = element(link, "source")
    element(source, "ip", address=host.gateway, family="ipv4", prefix=32, peer=sliver.address)
    element(link, "target", dev=names.link(sliver.id))
    return link
