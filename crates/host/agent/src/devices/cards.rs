//! Network cards: Ethernet's, and the ports of InfiniBand and RoCE.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use model::Gauge;

use super::pcie::{PcieDevice, number};
use crate::ports;

/// Part of its speed from which a link is full: headers and gaps between frames are not counted.
const FULL: f64 = 0.9;
/// What a card that does not know its speed is taken to carry: what the kernel says of a
/// container's.
const UNKNOWN_BYTES_PER_S: f64 = 10e9 / 8.0;
/// `ARPHRD_ETHER`.
const ETHERNET: f64 = 1.0;
/// Counters, of those of an Ethernet card, that grow only when something is wrong.
const ERRORS: [&str; 5] = [
    "statistics/rx_errors",
    "statistics/rx_missed_errors",
    "statistics/tx_errors",
    "statistics/tx_carrier_errors",
    "carrier_down_count",
];

/// The cards of a host that were up when its job began.
#[derive(Debug, Default)]
pub(super) struct Cards(Vec<Card>);

/// A port of a card.
#[derive(Debug)]
struct Card {
    name: String,
    folder: PathBuf,
    kind: Kind,
    /// They stay open, for to find them costs more than to read them.
    sent: File,
    received: File,
    last: Option<CardCounters>,
    /// `None` where the card does not know, as virtual ones.
    link_bytes_per_s: Option<f64>,
    pcie: PcieDevice,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Ethernet,
    /// Of a container: what it says of its speed means nothing.
    Virtual,
    Infiniband,
}

#[derive(Clone, Copy, Debug)]
struct CardCounters {
    at_ns: u64,
    sent_bytes: u64,
    received_bytes: u64,
}

impl Cards {
    /// The cards that the kernel shows in this folder.
    pub(super) fn under(system: &Path) -> Self {
        let mut cards = Vec::new();
        let mut virtual_cards = Vec::new();
        for (name, folder) in ports::entries(&system.join("class/net")) {
            let device = folder.join("device");
            // A card without a cable is not slow.
            if number(&folder.join("carrier")) != Some(1.0) {
                continue;
            }
            if device.exists() {
                cards.extend(Card::open(name, folder, Kind::Ethernet, device));
            } else if is_an_end(&folder) {
                virtual_cards.extend(Card::open(name, folder, Kind::Virtual, device));
            }
        }
        for (name, folder) in ports::entries(&system.join("class/infiniband")) {
            for (port, place) in ports::entries(&folder.join("ports")) {
                if ports::port_in(&place).is_active() {
                    let name = format!("{name}/{port}");
                    cards.extend(Card::open(
                        name,
                        place,
                        Kind::Infiniband,
                        folder.join("device"),
                    ));
                }
            }
        }
        // A container sees no bus, and its end of what leads out of it. A host sees such ends too.
        if cards.is_empty() {
            cards = virtual_cards;
        }
        cards.sort_by(|one, other| one.name.cmp(&other.name));
        Self(cards)
    }

    /// Looks how much they carry, and hands out what each did since the last look: its name, and
    /// what was measured over how many seconds. Returns how full all links together were of what
    /// the host sent: what it received another host has sent, perhaps in its own rhythm.
    pub(super) fn look(
        &mut self,
        at_ns: u64,
        take: &mut dyn FnMut(&str, Gauge, f64, f64),
    ) -> Option<f64> {
        let (mut carried, mut most) = (0.0, 0.0);
        for card in &mut self.0 {
            let Some((sent, received, over_s)) = card.look(at_ns) else {
                continue;
            };
            take(&card.name, Gauge::SentBytesPerS, sent, over_s);
            take(&card.name, Gauge::ReceivedBytesPerS, received, over_s);
            if let Some(link) = card.link_bytes_per_s {
                // Both ways have the whole speed, so the busier one says how full it is.
                let is_full = sent.max(received) >= FULL * link;
                take(
                    &card.name,
                    Gauge::FullShare,
                    f64::from(u8::from(is_full)),
                    over_s,
                );
            }
            carried += sent;
            most += card.link_bytes_per_s.unwrap_or(UNKNOWN_BYTES_PER_S);
        }
        (most > 0.0).then(|| carried / most)
    }

    /// Looks how their links stand, which costs more: the network, and the host's bus.
    pub(super) fn look_at_links(&mut self, take: &mut dyn FnMut(&str, Gauge, f64)) {
        for card in &mut self.0 {
            card.link_bytes_per_s = card.kind.link_bytes_per_s(&card.folder);
            if let Some(link) = card.link_bytes_per_s {
                take(&card.name, Gauge::LinkBytesPerS, link);
            }
            if let Some(link) = card.pcie.link() {
                take(&card.name, Gauge::PcieLanes, link.lanes);
                take(&card.name, Gauge::PcieLanesMost, link.lanes_most);
                take(&card.name, Gauge::PcieGtPerS, link.gt_per_s);
            }
        }
    }

    /// Errors that each has counted since its driver was loaded.
    pub(super) fn errors(&self) -> impl Iterator<Item = (String, Vec<(String, u64)>)> {
        self.0.iter().map(|card| (card.name.clone(), card.errors()))
    }
}

impl Card {
    fn open(name: String, folder: PathBuf, kind: Kind, device: PathBuf) -> Option<Self> {
        let [sent, received] = kind.counters();
        Some(Self {
            name,
            sent: File::open(folder.join(sent)).ok()?,
            received: File::open(folder.join(received)).ok()?,
            last: None,
            link_bytes_per_s: kind.link_bytes_per_s(&folder),
            pcie: PcieDevice::at(device),
            folder,
            kind,
        })
    }

    /// Bytes it sent and received a second since the last look, and the seconds since then.
    fn look(&mut self, at_ns: u64) -> Option<(f64, f64, f64)> {
        let unit_bytes = self.kind.unit_bytes();
        let sent_bytes = count(&self.sent)?.saturating_mul(unit_bytes);
        let received_bytes = count(&self.received)?.saturating_mul(unit_bytes);
        let before = self.last.replace(CardCounters {
            at_ns,
            sent_bytes,
            received_bytes,
        })?;
        let over_s = at_ns.saturating_sub(before.at_ns) as f64 * 1e-9;
        // A driver that is loaded again counts from zero.
        let sent = sent_bytes.saturating_sub(before.sent_bytes) as f64;
        let received = received_bytes.saturating_sub(before.received_bytes) as f64;
        (over_s > 0.0).then_some((sent / over_s, received / over_s, over_s))
    }

    fn errors(&self) -> Vec<(String, u64)> {
        let mut errors = self.pcie.errors();
        match self.kind {
            Kind::Ethernet | Kind::Virtual => {
                errors.extend(ERRORS.iter().filter_map(|place| {
                    let text = fs::read_to_string(self.folder.join(place)).ok()?;
                    let name = place.rsplit('/').next()?;
                    Some((name.to_owned(), text.trim().parse().ok()?))
                }));
            }
            Kind::Infiniband => {
                for (name, count) in ports::port_in(&self.folder).errors {
                    errors.push((name.to_owned(), count));
                }
            }
        }
        errors
    }
}

impl Kind {
    /// Counters of what was sent and received.
    fn counters(self) -> [&'static str; 2] {
        match self {
            Self::Ethernet | Self::Virtual => ["statistics/tx_bytes", "statistics/rx_bytes"],
            Self::Infiniband => ["counters/port_xmit_data", "counters/port_rcv_data"],
        }
    }

    /// What these count: InfiniBand's count words of four bytes.
    fn unit_bytes(self) -> u64 {
        match self {
            Self::Ethernet | Self::Virtual => 1,
            Self::Infiniband => 4,
        }
    }

    fn link_bytes_per_s(self, folder: &Path) -> Option<f64> {
        let bits_per_s = match self {
            // In Mbit/s; -1 where it is not known.
            Self::Ethernet => number(&folder.join("speed"))? * 1e6,
            // "400 Gb/sec (4X NDR)"
            Self::Infiniband => number(&folder.join("rate"))? * 1e9,
            Self::Virtual => return None,
        };
        (bits_per_s > 0.0).then_some(bits_per_s / 8.0)
    }
}

/// Whether what is on no bus leads out of this container: it is no bridge, no tunnel, not the host
/// itself, and nothing that goes over another one.
fn is_an_end(folder: &Path) -> bool {
    number(&folder.join("type")) == Some(ETHERNET)
        && !["bridge", "tun_flags"]
            .iter()
            .any(|of| folder.join(of).exists())
        && !ports::entries(folder).any(|(name, _)| name.starts_with("lower_"))
}

/// The number in a counter's file.
fn count(file: &File) -> Option<u64> {
    let mut bytes = [0; 32];
    let length = file.read_at(&mut bytes, 0).ok()?;
    std::str::from_utf8(&bytes[..length])
        .ok()?
        .trim()
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// A host with an Ethernet card, an InfiniBand port, and what is no card.
    fn host() -> (tempfile::TempDir, impl Fn(&str, &str)) {
        let root = tempfile::tempdir().unwrap();
        let place = root.path().to_owned();
        let write = move |path: &str, text: &str| {
            let path = place.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        for name in ["eth0", "eth1", "lo"] {
            write(&format!("class/net/{name}/carrier"), "1\n");
            write(&format!("class/net/{name}/speed"), "1000\n");
            write(&format!("class/net/{name}/carrier_down_count"), "1\n");
            for counter in ["tx_bytes", "rx_bytes", "rx_errors", "rx_dropped"] {
                write(&format!("class/net/{name}/statistics/{counter}"), "100\n");
            }
        }
        write("class/net/eth0/device/max_link_width", "16\n");
        write("class/net/eth0/device/current_link_width", "4\n");
        write(
            "class/net/eth0/device/current_link_speed",
            "8.0 GT/s PCIe\n",
        );
        write("class/net/eth1/device/vendor", "0x1af4\n");
        write("class/net/eth1/carrier", "0\n");
        let port = "class/infiniband/mlx5_0/ports/1";
        write(&format!("{port}/state"), "4: ACTIVE\n");
        write(&format!("{port}/rate"), "400 Gb/sec (4X NDR)\n");
        write(&format!("{port}/counters/port_xmit_data"), "0\n");
        write(&format!("{port}/counters/port_rcv_data"), "0\n");
        write(&format!("{port}/counters/symbol_error"), "7\n");
        (root, write)
    }

    #[test]
    fn cards_that_are_up_tell_what_they_carry_and_how_full_their_links_are() {
        let (root, write) = host();
        let mut cards = Cards::under(root.path());
        assert_eq!(
            cards.look(0, &mut |_, _, _, _| panic!("nothing to compare")),
            None
        );
        write("class/net/eth0/statistics/tx_bytes", "250000100\n");
        write(
            "class/infiniband/mlx5_0/ports/1/counters/port_rcv_data",
            "2500000000\n",
        );
        let mut reported = Vec::new();
        let full = cards.look(2 * SECOND, &mut |name, gauge, value, over_s| {
            reported.push((name.to_owned(), gauge, value, over_s));
        });
        let row = |name: &str, gauge, value| (name.to_owned(), gauge, value, 2.0);
        assert_eq!(
            reported,
            [
                row("eth0", Gauge::SentBytesPerS, 125e6),
                row("eth0", Gauge::ReceivedBytesPerS, 0.0),
                row("eth0", Gauge::FullShare, 1.0),
                row("mlx5_0/1", Gauge::SentBytesPerS, 0.0),
                row("mlx5_0/1", Gauge::ReceivedBytesPerS, 5e9),
                row("mlx5_0/1", Gauge::FullShare, 0.0),
            ]
        );
        assert_eq!(full, Some(125e6 / (125e6 + 50e9)), "of what was sent");
    }

    #[test]
    fn a_container_tells_of_its_end_of_what_leads_out_of_it() {
        let root = tempfile::tempdir().unwrap();
        let net = root.path().join("class/net");
        let write = |path: &str, text: &str| {
            let path = net.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        for (name, kind) in [
            ("eth0", "1\n"),
            ("br0", "1\n"),
            ("vlan7", "1\n"),
            ("lo", "772\n"),
        ] {
            write(&format!("{name}/type"), kind);
            write(&format!("{name}/carrier"), "1\n");
            write(&format!("{name}/speed"), "10000\n");
            write(&format!("{name}/statistics/tx_bytes"), "0\n");
            write(&format!("{name}/statistics/rx_bytes"), "0\n");
        }
        write("br0/bridge/bridge_id", "");
        write("vlan7/lower_eth0/type", "1\n");
        let mut cards = Cards::under(root.path());
        cards.look(0, &mut |_, _, _, _| panic!("nothing to compare"));
        write("eth0/statistics/tx_bytes", "125000000\n");
        let mut reported = Vec::new();
        let full = cards.look(SECOND, &mut |name, gauge, value, _| {
            reported.push((name.to_owned(), gauge, value));
        });
        let row = |gauge, value| ("eth0".to_owned(), gauge, value);
        let sent = [
            row(Gauge::SentBytesPerS, 125e6),
            row(Gauge::ReceivedBytesPerS, 0.0),
        ];
        assert_eq!(reported, sent, "nor whether it is full");
        assert_eq!(full, Some(0.1), "of 10 Gbit/s");
        cards.look_at_links(&mut |_, gauge, _| panic!("{gauge:?} of what is virtual"));
    }

    #[test]
    fn links_and_errors_are_read_from_the_card_and_its_bus() {
        let (root, write) = host();
        let mut cards = Cards::under(root.path());
        write("class/net/eth0/statistics/rx_errors", "103\n");
        let mut reported = Vec::new();
        cards.look_at_links(&mut |name, gauge, value| {
            reported.push((name.to_owned(), gauge, value));
        });
        let row = |name: &str, gauge, value| (name.to_owned(), gauge, value);
        assert_eq!(
            reported,
            [
                row("eth0", Gauge::LinkBytesPerS, 125e6),
                row("eth0", Gauge::PcieLanes, 4.0),
                row("eth0", Gauge::PcieLanesMost, 16.0),
                row("eth0", Gauge::PcieGtPerS, 8.0),
                row("mlx5_0/1", Gauge::LinkBytesPerS, 50e9),
            ]
        );
        let errors: Vec<_> = cards.errors().collect();
        let named = |name: &str, count| (name.to_owned(), count);
        let ethernet = vec![named("rx_errors", 103), named("carrier_down_count", 1)];
        assert_eq!(errors[0], ("eth0".to_owned(), ethernet));
        assert_eq!(
            errors[1],
            ("mlx5_0/1".to_owned(), vec![named("symbol_error", 7)])
        );
        let nothing = Cards::under(&root.path().join("none"));
        assert_eq!(nothing.errors().count(), 0);
    }
}
