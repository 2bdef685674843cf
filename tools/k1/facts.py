"""The facts about a board that `board.toml` states, each with its source, and what makes them consistent."""

from __future__ import annotations

from ipaddress import IPv4Interface
from typing import Annotated, Any, Generic, Literal, Self, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints, model_validator

from k1 import isa
from k1.typedtoml import Model, fault, matching, that

T = TypeVar("T")


class Fact(Model, Generic[T]):
    """One value, where it comes from, and whether silicon has shown it to be true."""

    value: T
    source: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
    confirmed: bool
    note: str | None = None

    def __str__(self) -> str:
        if isinstance(self.value, bool):
            return "yes" if self.value else "no"
        if isinstance(self.value, tuple):
            return ", ".join(map(str, self.value))
        if isinstance(self.value, dict):
            return ", ".join(f"{key}={value}" for key, value in self.value.items())
        return str(self.value)


class Facts(Model):
    """A table of facts. One that is `None` is not published: only the board's owner can give it."""


def _isa(text: str) -> str:
    isa.extensions(text)
    return text


def _power_of_two(value: int) -> bool:
    return value > 0 and value & (value - 1) == 0


def _host(text: Any) -> Any:
    try:
        address = IPv4Interface(str(text))
    except ValueError:
        address = IPv4Interface("0.0.0.0/0")
    network = address.network
    if network.num_addresses < 4 or address.ip in (network.network_address, network.broadcast_address):
        raise fault("not a host's address", allowed="address/prefix of a host, such as 192.168.1.100/24")
    return text


Count = Annotated[int, Field(gt=0)]
Percent = Annotated[int, Field(ge=0, le=100)]
Word = Annotated[int, Field(ge=0, le=0xFFFF)]
Offset = Annotated[
    int,
    Field(ge=0, le=0xFFFF_FFFF),
    that(lambda offset: offset % 4 == 0, "not aligned", "an offset of a 32-bit register, a multiple of 4"),
]
Isa = Annotated[str, AfterValidator(_isa)]
Extension = Annotated[str, AfterValidator(isa.check_known)]
Version = Annotated[str, matching(r"\d+(\.\d+)+", "numbers joined by dots, such as 6.1.56")]
UsbId = Annotated[str, matching(r"[0-9a-f]{4}:[0-9a-f]{4}", "vendor:product, four lower-case hex digits each")]
Mac = Annotated[
    str,
    matching(r"([0-9a-f]{2}:){5}[0-9a-f]{2}", "six pairs of lower-case hex digits joined by colons"),
    that(lambda mac: int(mac[:2], 16) % 2 == 0, "a multicast address", "a unicast address, first byte even"),
]
Address = Annotated[IPv4Interface, BeforeValidator(_host)]
Range = Annotated[
    tuple[Count, Count], that(lambda r: r[0] <= r[1], "a range that ends before it begins", "[low, high]")
]
# Termination as a part of the LPDDR4 reference resistor, RZQ = 240 ohm.
OdtRatio = Literal["RZQ/1", "RZQ/2", "RZQ/3", "RZQ/4", "RZQ/5", "RZQ/6", "RZQ/7"]


class Cpu(Facts):
    """Cores, instruction set and threads."""

    isa: Fact[Isa]
    abi: Fact[Literal["lp64", "lp64f", "lp64d"]]
    absent: Fact[tuple[Extension, ...]]
    vector: Fact[Literal["detect", "absent"]]
    cores: Fact[Count]
    threads_per_core: Fact[Annotated[int, Field(ge=1, le=8)]]
    worker_cpus: Fact[tuple[Annotated[int, Field(ge=0)], ...]]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        has = isa.extensions(self.isa.value)
        needs = {"lp64": "i", "lp64f": "f", "lp64d": "d"}[self.abi.value]
        if needs not in has:
            raise fault(f"needs extension {needs}", allowed="an abi that cpu.isa can do", key="abi", got=self.abi.value)
        if both := sorted(has.intersection(self.absent.value)):
            text = f"{both[0]!r} is part of cpu.isa"
            raise fault(text, allowed="extensions that cpu.isa does not name", key="absent", got=self.absent.value)
        if "v" in has:
            text = "states V, which is found out at run time"
            raise fault(text, allowed="a name without v", key="isa", got=self.isa.value)
        self._check_workers()
        return self

    def _check_workers(self) -> None:
        workers, threads = self.worker_cpus.value, self.threads_per_core.value
        last = self.cores.value * threads - 1
        if not workers or max(workers) > last:
            allowed = f"at least one of the CPUs 0 to {last} (cores x threads_per_core)"
            raise fault("no such CPU" if workers else "no worker", allowed=allowed, key="worker_cpus", got=workers)
        if len({cpu // threads for cpu in workers}) < len(workers):
            allowed = f"one CPU of each group of {threads}, counted from 0"
            raise fault("two workers on one core", allowed=allowed, key="worker_cpus", got=workers)


class Memory(Facts):
    """Main memory."""

    kind: Fact[Literal["LPDDR4", "LPDDR4x"]]
    total_mib: Fact[Count]
    usable_mib: Fact[Count]
    bandwidth_mb_s: Fact[Count]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.usable_mib.value > self.total_mib.value:
            allowed = f"at most memory.total_mib, {self.total_mib.value}"
            raise fault("more than there is", allowed=allowed, key="usable_mib", got=self.usable_mib.value)
        return self


class L2(Facts):
    """The last cache before main memory."""

    size_kib: Fact[Count]
    ways: Fact[Count]
    line_bytes: Fact[Annotated[int, that(_power_of_two, "not a power of two", "16, 32, 64, 128, …")]]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        size, way = self.size_kib.value * 1024, self.ways.value * self.line_bytes.value
        if size % way or not _power_of_two(size // way):
            allowed = f"ways x line_bytes ({way}) times a power of two"
            raise fault("does not fit ways and line_bytes", allowed=allowed, key="size_kib", got=self.size_kib.value)
        return self


class Storage(Facts):
    """The eMMC, and how much of it the root file system may take."""

    emmc_gb: Fact[Count]
    root_budget_mb: Fact[Count]


class Gmac(Facts):
    """The Ethernet controller and its PHY."""

    phy: Fact[Annotated[str, StringConstraints(min_length=1)]]
    rtt_us: Fact[Range]
    advertise_pause: Fact[bool]
    cache_en: Fact[bool]
    gmac_ctrl_offset: Fact[Offset] | None = None
    cache_en_bit: Fact[Annotated[int, Field(ge=0, le=31)]] | None = None


class Network(Facts):
    """Addresses of the nodes: those of rank 0, to which a rank is added."""

    factory_mac: Fact[Mac]
    mac_base: Fact[Mac]
    address_base: Fact[Address]
    mtu: Fact[Annotated[int, Field(ge=1280, le=9216)]]


class Dfu(Facts):
    """The boot ROM's USB download mode."""

    usb_id: Fact[UsbId]
    alt: Fact[Annotated[int, Field(ge=0, le=255)]]


class SerialLine(Model):
    """Settings of a serial line; as text `115200 8N1`."""

    baud: Annotated[int, Field(ge=1200, le=4_000_000)]
    data_bits: Literal[7, 8]
    parity: Literal["N", "E", "O"]
    stop_bits: Literal[1, 2]

    def __str__(self) -> str:
        return f"{self.baud} {self.data_bits}{self.parity}{self.stop_bits}"


class Serial(Facts):
    """The console."""

    line: Fact[SerialLine]


class Software(Facts):
    """What the board's maker names as working together."""

    opensbi: Fact[Version]
    linux: Fact[Version]
    buildroot: Fact[Version]
    libc: Fact[Literal["musl", "glibc", "uclibc"]]


class Power(Facts):
    """Power drawn by one board under load."""

    node_w: Fact[Annotated[float, Field(gt=0)]]


class PhyRegister(Model):
    """A register of the DDR PHY and what is written to it."""

    offset: Word
    word: Word

    def __str__(self) -> str:
        return f"0x{self.offset:02x} = 0x{self.word:04x}"


class Odt(PhyRegister):
    """The PHY register of the termination strength."""

    strength: Literal["off", OdtRatio]

    def __str__(self) -> str:
        return f"{super().__str__()} ({self.strength})"


class Weights(Model):
    """Shares of the DDR arbiter, in percent."""

    cpu: Percent
    dma: Percent
    gpu: Percent

    @model_validator(mode="after")
    def _sum(self) -> Self:
        total = self.cpu + self.dma + self.gpu
        if total != 100:
            raise fault(f"sum is {total}", allowed="three percentages that sum to 100")
        return self


class Ddr(Facts):
    """On-die termination and arbitration of the DDR controller."""

    odt_enable: Fact[PhyRegister]
    odt_strength: Fact[Odt]
    odt_words: Fact[dict[OdtRatio, Word]]
    arbitration: Fact[Literal["fixed-priority+round-robin"]]
    weights: Fact[Weights]
    arbitration_offset: Fact[Word] | None = None
    arbitration_word: Fact[Word] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        odt, enabled, words = self.odt_strength.value, self.odt_enable.value.word, self.odt_words.value
        if (odt.strength == "off") != (enabled == 0):
            allowed = "0 for ddr.odt_strength.strength off, else the bits of the buses to terminate"
            raise fault(f"contradicts strength {odt.strength}", allowed=allowed, key="odt_enable.word", got=enabled)
        if odt.strength == "off":
            return self
        if odt.strength not in words:
            allowed = f"{', '.join(('off', *words))}; any other needs its register word in ddr.odt_words"
            raise fault("no known register word", allowed=allowed, key="odt_strength.strength", got=odt.strength)
        if odt.word != words[odt.strength]:
            allowed = f"0x{words[odt.strength]:04x}, the word of {odt.strength} in ddr.odt_words"
            raise fault(f"is not {odt.strength}", allowed=allowed, key="odt_strength.word", got=odt.word)
        return self


class Uboot(Facts):
    """Timing of the network start: the PHY must have power before the MAC is set up."""

    gmac_delay_us: Fact[Annotated[int, Field(ge=0, le=1_000_000)]]
    phy_power_window_ms: Fact[Count]
    supply_skew_ms: Fact[Count]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        least = self.supply_skew_ms.value * 1000
        if self.gmac_delay_us.value < least:
            allowed = f"at least uboot.supply_skew_ms, {least} µs"
            raise fault("PHY may be unpowered", allowed=allowed, key="gmac_delay_us", got=self.gmac_delay_us.value)
        return self
