"""Settings: frozen dataclasses read from one TOML file. Every setting has a default that works.

The file is `$SLICEMGR_CONFIG`, else `/etc/slicemgr/slicemgr.toml`; without a file all defaults apply. Sizes may be
written `512M`, durations `30s`, `7d`. An unknown or wrongly typed setting is refused by name.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import os
import re
import tomllib
import typing
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from slicemgr import config_oidc
from slicemgr.config_oidc import OidcConfig
from slicemgr.errors import invalid

DEFAULT_FILE = Path("/etc/slicemgr/slicemgr.toml")
CENTRE = "centre.json"  # in the directory of a host's membership: its testbed
PACKAGE = Path(__file__).parent  # launcher, init, recipes and migrations are installed below it

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)
# `Mbps` and `M` are refused: tc reads them as bytes, other programs as bits.
_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([KMGT]?)bit(?:/s)?)?", re.IGNORECASE)
RATE_HINT = "write it as 800kbit, 100Mbit, 1Gbit or a number of bits per second"
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)")
_PLACE = re.compile(r"([A-Za-z0-9.-]+|\[[0-9a-fA-F:.]+\]):[0-9]{1,5}")
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_SPARE_NAMES = ("image", "cpu", "memory", "disk", "pids", "ports", "boot", "machine", "init")
_SPARE = re.compile(rf"(?:{'|'.join(_SPARE_NAMES)})=[A-Za-z0-9][A-Za-z0-9._-]*|count=[1-9][0-9]{{0,2}}")
_LONGEST_DURATION = timedelta(days=36500)
_LEAST_CONNECTIONS, _MOST_CONNECTIONS = 256, 1_000_000  # the kernel's matches count them in parts


def parse_size(text: str | int, name: str = "size") -> int:
    """Bytes of `512M`, `2G`, `2GiB` or `1048576` (powers of 1024). Refused if it is not a size."""
    match = _SIZE.fullmatch(str(text).strip())
    if match is None or len(str(text)) > 32:
        raise invalid(name, f"{text!r} is not a size", "write it as 512M, 2G or a number of bytes")
    return int(float(match[1]) * 1024 ** " KMGT".index(match[2].upper() or " "))


def parse_rate(text: str | int, name: str = "rate") -> int:
    """Bits per second of `800kbit`, `100Mbit`, `1.5Gbit/s` or `64000` (powers of 1000). Refused if it is not a rate."""
    match = _RATE.fullmatch(str(text).strip())
    if match is None or len(str(text)) > 32:
        raise invalid(name, f"{str(text)[:40]!r} is not a rate", RATE_HINT)
    return round(float(match[1]) * 1000.0 ** " kmgt".index((match[2] or " ").lower()))


def parse_duration(text: str, name: str = "duration") -> timedelta:
    """A duration such as `30s`, `12h`, `7d`. Refused if it is not one or is beyond a hundred years."""
    match = _DURATION.fullmatch(str(text).strip())
    if match is None or len(str(text)) > 32:
        raise invalid(name, f"{text!r} is not a duration", "write it as 30s, 15m, 12h, 7d or 2w")
    seconds = float(match[1]) * _SECONDS[match[2]]
    if seconds > _LONGEST_DURATION.total_seconds():
        raise invalid(name, f"{text!r} is too long", "use at most a hundred years")
    return timedelta(seconds=seconds)


@dataclass(frozen=True, slots=True)
class Size:
    """A setting in bytes, written like `512M`."""

    bytes: int


@dataclass(frozen=True, slots=True)
class NodeConfig:
    name: str = "node1"
    address: str = "127.0.0.1"  # where users reach the port blocks; shown as the slivers' SSH host
    state_dir: Path = Path("/var/lib/slicemgr")
    run_dir: Path = Path("/run/slicemgr")
    pool: Path = Path("/var/lib/slicemgr/pool")  # must be on btrfs
    read_ahead: Size = Size(128 << 10)  # of the pool; 0: as the kernel has it


@dataclass(frozen=True, slots=True)
class StoreConfig:
    url: str = field(default="", repr=False)  # "" means SQLite in state_dir; may contain a password
    lock_timeout: timedelta = timedelta(seconds=10)
    keep_operations: timedelta = timedelta(days=90)
    keep_events: timedelta = timedelta(days=365)


@dataclass(frozen=True, slots=True)
class WebConfig:
    host: str = "127.0.0.1"
    port: int = 8480
    user: str = "slicemgr"  # a name, or `uid:gid`; the web process never runs as root
    threads: int = 64
    max_image: Size = Size(64 << 30)
    max_report: Size = Size(32 << 20)  # all files of a published experiment together
    url: str = ""  # the URL of the service, for links; "" means: as in the request
    proxies: int = 0  # trusted proxies before it, each of which adds the client's address
    cookie: str = "secure"  # of the pages: over TLS alone; `plain`: over http, on a private network
    connections: int = 2000  # at once; beyond that, the oldest incomplete requests are closed
    connections_per_address: int = 200  # behind proxies: concurrent requests that they forward from an address
    header_time: timedelta = timedelta(seconds=15)  # for the whole header of a request
    body_time: timedelta = timedelta(seconds=10)  # in which at least `body_least` of a body arrives, or all of it
    body_least: Size = Size(64 << 10)
    answer_time: timedelta = timedelta(seconds=30)  # within which a client receives each part of a response
    buffers: Size = Size(128 << 20)  # memory for requests that are incomplete or wait for a thread
    uploads: int = 16  # concurrent uploads of disk images and reports
    uploads_per_user: int = 4
    streams_per_user: int = 16  # open consoles and followed operations of a user


@dataclass(frozen=True, slots=True)
class LogConfig:
    format: str = "text"  # or json
    access: bool = True  # a line for each request


@dataclass(frozen=True, slots=True)
class NetworkConfig:
    addresses: str = "10.77.0.0/16"  # one per sliver, private to the node
    gateway: str = "169.254.1.1"  # the node's end of every link
    ports_first: int = 10000
    ports_last: int = 32767
    ports_per_sliver: int = 20
    dns: tuple[str, ...] = ()  # () means: the node's own /etc/resolv.conf, without loopback resolvers
    denied: tuple[str, ...] = ("169.254.0.0/16",)  # networks to which slivers may not open connections
    firewall: str = "auto"  # auto, legacy (python-iptables) or restore (iptables-restore)
    connections: int = 4096  # tracked for one sliver: opened by it, and as many opened to it from outside
    connection_rate: int = 200  # new ones per second in each of these directions, after a burst of `connections`
    untracked: tuple[int, ...] = ()  # TCP ports of the node's own services that work without connection tracking


@dataclass(frozen=True, slots=True)
class LibvirtConfig:
    lxc: str = "lxc:///system"
    qemu: str = "qemu:///system"
    launcher: Path = PACKAGE / "libexec" / "sliver-launcher"
    call_timeout: timedelta = timedelta(seconds=30)
    acceleration: str = "auto"  # of virtual machines: kvm, emulation, or auto: kvm if a guest really boots with it
    machine_group: str = "kvm"  # QEMU's group: may open /dev/kvm and read the disk images


@dataclass(frozen=True, slots=True)
class ImporterConfig:
    """The process that reads imported disk images. user: a name, or `uid:gid`, not used by others, and never root."""

    user: str = "58480:58480"
    cache: Path = Path("/var/cache/slicemgr")  # libguestfs' appliance, built from the node's packages


@dataclass(frozen=True, slots=True)
class ExchangeConfig:
    """The exchange of images between the nodes of a testbed. user: a name, or `uid:gid`, as of the importer."""

    port: int = 8481  # TCP, open while images are exchanged; 0: images come from the service alone
    user: str = "58481:58481"
    upload: Size = Size(0)  # bytes a second to other nodes together; 0: no limit
    streams: bool = True  # whether bases are received as streams that another node made; else images are extracted here


@dataclass(frozen=True, slots=True)
class LimitsConfig:
    """Defaults of requests, and how far the sum of the limits may exceed the node."""

    memory: Size = Size(512 << 20)
    disk: Size = Size(4 << 30)
    pids: int = 512
    cpu: float = 1.0
    ptys: int = 64
    capture_rings: Size = Size(8 << 20)  # of all packet sockets of an lxc sliver together
    memory_overcommit: float = 32.0
    memory_guarantee: Size = Size(0)  # of a request without one, at most its memory
    memory_reserve: Size = Size(1 << 30)  # of the node's memory, which is never guaranteed to slivers
    disk_overcommit: float = 64.0
    image: str = ""  # of requests without one; "": the only ready image
    slivers_per_slice: int = 500
    snapshots_per_slice: int = 10


@dataclass(frozen=True, slots=True)
class MemoryConfig:
    controller: str = "observe"  # what a node that runs short does: on takes memory, observe only reports it, or off


@dataclass(frozen=True, slots=True)
class LeaseConfig:
    default: timedelta = timedelta(days=7)
    longest: timedelta = timedelta(days=90)
    grace: timedelta = timedelta(days=3)  # stopped at the end, deleted after this
    window: timedelta = timedelta(0)  # renewed only in this last part of a lease; 0s: at any time
    reminders: tuple[timedelta, ...] = (timedelta(days=3), timedelta(days=1), timedelta(hours=2))  # before the end


@dataclass(frozen=True, slots=True)
class MailConfig:
    """server "": no mail is sent. port 0: 587 with starttls, 465 with tls, 25 with none."""

    server: str = ""
    port: int = 0
    security: str = "starttls"  # starttls, tls or none
    ca_file: str = ""  # trusted certificate authorities; "": those of the system
    user: str = ""
    password_file: str = ""  # readable by root alone
    sender: str = ""
    timeout: timedelta = timedelta(seconds=30)
    patience: timedelta = timedelta(days=2)  # no attempts after this


@dataclass(frozen=True, slots=True)
class PeopleConfig:
    invitation: timedelta = timedelta(days=3)  # validity of an invitation link
    project_invitation: timedelta = timedelta(days=14)  # validity of an invitation to a project
    invited_accounts: bool = True  # whether the mail of an invitation to a project lets its recipient create an account
    session: timedelta = timedelta(hours=12)
    token: timedelta = timedelta(days=30)  # of a token without a requested expiry
    token_longest: timedelta = timedelta(days=365)
    failures: int = 10  # without a wait, to an account from an address; all of either: three times as many
    failures_in: timedelta = timedelta(minutes=15)  # failures are forgotten after this time without another
    delay: timedelta = timedelta(seconds=5)  # the first wait between further failures; it doubles with each
    delay_longest: timedelta = timedelta(minutes=5)
    delay_account: timedelta = timedelta(minutes=1)  # the longest wait for failures from many addresses together
    known_browser: timedelta = timedelta(days=180)  # how long a browser stays known after a sign-in
    hashing: int = 2  # passwords checked at once, 64 MiB of memory each


@dataclass(frozen=True, slots=True)
class QuotaConfig:
    """Limits of a new project. A PI may grant up to `ceiling` times as much."""

    slices: int = 10
    slivers: int = 50
    vcpus: float = 50.0
    memory: Size = Size(32 << 30)
    memory_guarantee: Size = Size(8 << 30)
    disk: Size = Size(200 << 30)
    ports: int = 1000
    lease: timedelta = timedelta(days=30)
    ceiling: float = 2.0


@dataclass(frozen=True, slots=True)
class AgentConfig:
    workers: int = 8
    reconcile: timedelta = timedelta(seconds=30)
    stop_grace: timedelta = timedelta(seconds=10)
    ssh_wait: timedelta = timedelta(seconds=30)
    boot_wait: timedelta = timedelta(seconds=180)  # the same for a virtual machine, which boots first


@dataclass(frozen=True, slots=True)
class SparesConfig:
    """Slivers that run before a user asks for them; a create takes one that fits.

    keep: `TYPE NAME=VALUE …` for each kind on each node, such as `kvm image=debian-12-thin machine=thin count=2`.
    """

    keep: tuple[str, ...] = ("lxc",)  # () means: none
    longest: timedelta = timedelta(days=1)  # after which a spare is replaced


@dataclass(frozen=True, slots=True)
class RecordConfig:
    """Intervals of measurements, and how long they are kept: as measured, by 5 minutes, by hours."""

    interval: timedelta = timedelta(seconds=30)
    keep: timedelta = timedelta(hours=6)
    keep_5m: timedelta = timedelta(days=7)
    keep_1h: timedelta = timedelta(days=180)
    slice_metrics: bool = False  # whether /metrics has series of each slice


@dataclass(frozen=True, slots=True)
class HubConfig:
    """The broker of a testbed of several nodes. management: its API, beside the hub."""

    broker: str = ""  # HOST:PORT at which nodes reach it; "": there is none
    management: str = "127.0.0.1:15672"
    user: str = "slicemgr-hub"  # owns the files of the hub, which runs as this user: a name, or `uid:gid`


@dataclass(frozen=True, slots=True)
class Config:
    node: NodeConfig = field(default_factory=NodeConfig)
    store: StoreConfig = field(default_factory=StoreConfig)
    web: WebConfig = field(default_factory=WebConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    libvirt: LibvirtConfig = field(default_factory=LibvirtConfig)
    importer: ImporterConfig = field(default_factory=ImporterConfig)
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    lease: LeaseConfig = field(default_factory=LeaseConfig)
    people: PeopleConfig = field(default_factory=PeopleConfig)
    quota: QuotaConfig = field(default_factory=QuotaConfig)
    agent: AgentConfig = field(default_factory=AgentConfig)
    spares: SparesConfig = field(default_factory=SparesConfig)
    mail: MailConfig = field(default_factory=MailConfig)
    log: LogConfig = field(default_factory=LogConfig)
    record: RecordConfig = field(default_factory=RecordConfig)
    oidc: OidcConfig = field(default_factory=OidcConfig)
    hub: HubConfig = field(default_factory=HubConfig)
    exchange: ExchangeConfig = field(default_factory=ExchangeConfig)

    @property
    def store_url(self) -> str:
        """Of the service's database; on a host that has joined a testbed, of the rows that the centre sends it."""
        if self.joined:
            return f"sqlite:///{self.mirror_file}"
        return self.store.url or f"sqlite:///{self.node.state_dir}/db/slicemgr.db"

    @property
    def mirror_file(self) -> Path:
        """The database of a host that has joined a testbed, whatever `store.url` is: its rows are replaced."""
        return self.node.state_dir / "mirror.db"

    @property
    def wake_socket(self) -> Path:
        """The socket on which the agent receives wake-up datagrams."""
        return self.node.run_dir / "agent.sock"

    @property
    def console_socket(self) -> Path:
        """The socket on which the agent gives the web process the stream of a console, for a token."""
        return self.node.run_dir / "console.sock"

    @property
    def image_socket(self) -> Path:
        """The socket on which the agent gives the web process disk images, for the nodes of a testbed."""
        return self.node.run_dir / "images.sock"

    @property
    def images_dir(self) -> Path:
        """The imported disk images, `SHA256.FORMAT`; only root writes here."""
        return self.node.state_dir / "images"

    @property
    def uploads_dir(self) -> Path:
        """The spool of the web process for uploaded disk images."""
        return self.node.state_dir / "uploads"

    @property
    def authority_dir(self) -> Path:
        """The key and the certificate of the testbed's authority; only the signer reads them."""
        return self.node.state_dir / "authority"

    @property
    def hub_dir(self) -> Path:
        """The key and the certificate of the hub, and the password of the broker's management API."""
        return self.node.state_dir / "hub"

    @property
    def membership_dir(self) -> Path:
        """The key and the certificate with which this host belongs to a testbed."""
        return self.node.state_dir / "membership"

    @property
    def joined(self) -> bool:
        """Whether this host has joined a testbed: its rows come from the centre, and its reports go there."""
        return self.membership_dir.is_dir()  # the files in it are for root alone, the web process asks too

    @property
    def link_socket(self) -> Path:
        """The socket on which `slicemgr link` receives wake-up datagrams."""
        return self.node.run_dir / "link.sock"

    @property
    def question_socket(self) -> Path:
        """The socket on which the agent of a host that has joined answers questions of the service."""
        return self.node.run_dir / "questions.sock"

    @property
    def clock_file(self) -> Path:
        """How far the clock of this host is ahead of the centre's; `slicemgr link` writes it."""
        return self.node.run_dir / "clock-offset"

    @property
    def image_peers_file(self) -> Path:
        """The nodes that exchange images with this one, as the hub names them; `slicemgr link` writes it."""
        return self.node.run_dir / "image-peers.json"

    @property
    def hub_socket(self) -> Path:
        """The socket on which `slicemgr hub` receives wake-up datagrams; the name is in ipc.wake, too."""
        return self.node.run_dir / "hub" / "hub.sock"

    @property
    def broker_file(self) -> Path:
        """The state of the broker; `slicemgr hub` writes it."""
        return self.hub_socket.with_name("broker.json")

    @property
    def experiments_dir(self) -> Path:
        """The files of published experiments, a folder each; the web process writes here."""
        return self.node.state_dir / "experiments"


def file_of(path: Path | None = None) -> Path:
    """The file that `load` reads; it need not exist."""
    return path or Path(os.environ.get("SLICEMGR_CONFIG", DEFAULT_FILE))


def load(path: Path | None = None) -> Config:
    """The settings in `path`. Refused, with the setting's name, if one is unknown or wrong."""
    chosen = file_of(path)
    try:
        content = chosen.read_bytes()
    except FileNotFoundError:
        if path is not None or "SLICEMGR_CONFIG" in os.environ:
            raise invalid("config", f"{chosen} does not exist") from None
        content = b""
    return parse(content, chosen)


def parse(content: bytes, path: Path) -> Config:
    """The settings in the content of a file. Refused as by `load`; path: for the message."""
    try:
        raw = tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise invalid("config", f"{path} is not TOML: {error}") from error
    config = typing.cast(Config, _build(Config, raw, ""))
    _check(config)
    return config


def _build(cls: type, raw: dict[str, object], prefix: str) -> object:
    hints = typing.get_type_hints(cls)
    unknown = sorted(set(raw) - set(hints))
    if unknown:
        known = ", ".join(sorted(hints))
        raise invalid(f"{prefix}{unknown[0]}", "unknown setting", f"the settings here are {known}")
    return cls(**{name: _convert(hints[name], value, prefix + name) for name, value in raw.items()})


def _convert(kind: typing.Any, value: typing.Any, name: str) -> object:
    if dataclasses.is_dataclass(kind) and kind is not Size:
        if not isinstance(value, dict):
            raise invalid(name, "must be a table", f"write it as [{name}]")
        return _build(typing.cast(type, kind), value, f"{name}.")
    if kind is Size and isinstance(value, str | int):
        return Size(parse_size(value, name))
    if kind is timedelta and isinstance(value, str):
        return parse_duration(value, name)
    if kind is Path and isinstance(value, str):
        return Path(value)
    if kind == tuple[str, ...] and isinstance(value, list) and all(isinstance(one, str) for one in value):
        return tuple(value)
    if kind == tuple[int, ...] and isinstance(value, list) and all(type(one) is int for one in value):
        return tuple(value)
    if kind == tuple[timedelta, ...] and isinstance(value, list) and all(isinstance(one, str) for one in value):
        return tuple(sorted((parse_duration(one, name) for one in value), reverse=True))
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if kind in (str, int, bool) and type(value) is kind:
        return value
    shown = "it" if name == "store.url" else repr(value)
    raise invalid(name, f"{shown} has the wrong type", f"{getattr(kind, '__name__', kind)} is expected")


def _check(config: Config) -> None:
    """Refuse values that cannot work, before anything starts."""
    _check_network(config.network)
    if config.libvirt.acceleration not in ("auto", "kvm", "emulation"):
        raise invalid("libvirt.acceleration", f"{config.libvirt.acceleration!r} is unknown", "auto, kvm or emulation")
    if config.memory.controller not in ("on", "off", "observe"):
        raise invalid("memory.controller", f"{config.memory.controller!r} is unknown", "on, off or observe")
    if config.web.url and not re.fullmatch(r"https?://[^\s/]+(/[^\s]*)?[^\s/]", config.web.url):
        raise invalid("web.url", f"{config.web.url!r} is not a valid URL", "such as https://testbed.example")
    if config.web.cookie not in ("secure", "plain"):
        raise invalid("web.cookie", f"{config.web.cookie!r} is unknown", "secure or plain")
    _check_mail(config.mail)
    _check_hub(config.hub)
    _check_exchange(config.exchange.port)
    config_oidc.check(config.oidc, config.web.url)
    if not 0 <= config.web.proxies <= 8:
        raise invalid(
            "web.proxies", f"{config.web.proxies} is out of range", "use the number of reverse proxies, 0 to 8"
        )
    if config.log.format not in ("text", "json"):
        raise invalid("log.format", f"{config.log.format!r} is unknown", "text or json")
    _check_read_ahead(config.node.read_ahead.bytes)
    if config.quota.ceiling < 1:
        raise invalid("quota.ceiling", "must be at least 1")
    _check_record(config.record)
    _check_spares(config.spares)
    for name in ("header_time", "body_time", "answer_time"):
        if getattr(config.web, name) < timedelta(seconds=1):
            raise invalid(f"web.{name}", "must be at least 1s")
    counts = ("connections", "connections_per_address", "uploads", "uploads_per_user", "streams_per_user")
    for name, number in (
        *((f"web.{name}", getattr(config.web, name)) for name in counts),
        ("agent.workers", config.agent.workers),
        ("people.hashing", config.people.hashing),
        ("people.failures", config.people.failures),
    ):
        if number < 1:
            raise invalid(name, "must be at least 1")


def _check_read_ahead(size: int) -> None:
    if size and not 4 << 10 <= size <= 64 << 20:
        raise invalid("node.read_ahead", "is out of range", "use 4K to 64M, or 0 for the setting of the kernel")


def _check_spares(spares: SparesConfig) -> None:
    for text in spares.keep:
        sliver_type, *words = text.split() or [""]
        wrong = next((word for word in words if not _SPARE.fullmatch(word)), None)
        if sliver_type not in ("lxc", "kvm") or wrong is not None:
            hint = f"such as `lxc image=debian-12 count=2`; the names are count and {', '.join(_SPARE_NAMES)}"
            raise invalid("spares.keep", f"{(wrong or text)[:60]!r} is not understood", hint)
    if spares.longest < timedelta(minutes=10):
        raise invalid("spares.longest", "must be at least 10m")


def _check_hub(hub: HubConfig) -> None:
    for name, place in (("broker", hub.broker), ("management", hub.management)):
        if place and not _PLACE.fullmatch(place):
            raise invalid(f"hub.{name}", f"{place!r} is not a host and a port", "such as testbed.example:5671")


def _check_exchange(port: int) -> None:
    if port and not 1024 <= port <= 65535:
        raise invalid("exchange.port", f"{port} is not an unprivileged port", "use 1024 to 65535, or 0 for none")


def _check_mail(mail: MailConfig) -> None:
    if mail.security not in ("starttls", "tls", "none"):
        raise invalid("mail.security", f"{mail.security!r} is unknown", "starttls, tls or none")
    if not 0 <= mail.port <= 65535:
        raise invalid("mail.port", f"{mail.port} is not a port", "use 1 to 65535, or 0 for the default port")
    if mail.server and not re.fullmatch(r"[^\s@<>]+@[^\s@<>]+", mail.sender):
        raise invalid("mail.sender", f"{mail.sender!r} is not an email address", "such as testbed@example.org")
    if mail.user and not mail.password_file:
        raise invalid("mail.password_file", "is missing", "a file with the password of mail.user")
    if mail.user and mail.security == "none":
        raise invalid("mail.security", "the value none would send the password unencrypted", "starttls or tls")


def _check_record(record: RecordConfig) -> None:
    """Refuse retention times that delete samples before they are summed."""
    if not timedelta(seconds=1) <= record.interval <= timedelta(minutes=5):
        raise invalid("record.interval", "must lie between 1s and 5m")
    for name, least in (("keep", timedelta(minutes=30)), ("keep_5m", timedelta(hours=3)), ("keep_1h", timedelta(0))):
        if getattr(record, name) < least:
            raise invalid(f"record.{name}", "is shorter than required for summing up", f"at least {least}")


def _check_network(network: NetworkConfig) -> None:
    if not 1024 <= network.ports_first <= network.ports_last <= 65535:
        raise invalid("network.ports_first", "the port pool must lie within 1024..65535, first before last")
    if not 1 <= network.ports_per_sliver <= network.ports_last - network.ports_first + 1:
        raise invalid("network.ports_per_sliver", "must be at least 1 and fit into the port pool")
    if network.firewall not in ("auto", "legacy", "restore"):
        raise invalid("network.firewall", f"{network.firewall!r} is unknown", "auto, legacy or restore")
    _check_connections(network)
    for name, networks in (("addresses", (network.addresses,)), ("denied", network.denied)):
        for text in networks:
            try:
                ipaddress.IPv4Network(text)
            except ValueError as error:
                raise invalid(f"network.{name}", f"{text!r} is not an IPv4 network: {error}") from error
    for name, addresses in (("gateway", (network.gateway,)), ("dns", network.dns)):
        for text in addresses:
            try:
                ipaddress.IPv4Address(text)
            except ValueError as error:
                raise invalid(f"network.{name}", f"{text!r} is not an IPv4 address: {error}") from error


def _check_connections(network: NetworkConfig) -> None:
    for name, number, least in (
        ("connections", network.connections, _LEAST_CONNECTIONS),
        ("connection_rate", network.connection_rate, 1),
    ):
        if not least <= number <= _MOST_CONNECTIONS:
            raise invalid(f"network.{name}", f"{number} is out of range", f"{least} to {_MOST_CONNECTIONS}")
    for port in network.untracked:
        if not 1 <= port <= 65535 or network.ports_first <= port <= network.ports_last:
            raise invalid(
                "network.untracked", f"{port} is not a port outside the port pool", "use a port outside the port pool"
            )
