//! The words of what hosts say of devices: GPUs and network cards.

use model::{Cause, Device, DeviceUsage, Evidence, Gauge, Method, median};

use crate::words::{share, who};

/// Share of the time that a device must be slowed down or full, more than its peers, before it is
/// spoken of. Taste: limits are touched now and then everywhere.
const SHARE_MIN: f64 = 0.2;
/// The same of how busy it is: less says neither that it computes nor that it waits.
const BUSY_MIN: f64 = 0.25;
/// Part of its peers' clock or speed below which it is slow: clocks of like GPUs differ by a few
/// percent, links by halves.
const SPEED_RATIO: f64 = 0.9;

/// A device and the ranks that use it, beside others of its kind.
struct View<'a> {
    ranks: Vec<u32>,
    usage: &'a DeviceUsage,
    peers: &'a [&'a DeviceUsage],
}

/// What is worth telling of one device.
struct Telling {
    label: &'static str,
    text: String,
    values: Vec<(&'static str, f64)>,
    /// How bad it is, beside the same of other devices.
    excess: f64,
    /// What to look at, if that is clear.
    look_at: Option<String>,
}

/// Says what the devices of ranks did unlike those of others, and what to do if that is clear; of an
/// incident of all ranks, what holds back whoever uses such devices.
///
/// `told` is what each device did while the incident went on, with the ranks that use it. Devices
/// that all ranks share say nothing of why only some of them are slow.
pub fn devices(
    ranks: &[u32],
    told: &[(Vec<u32>, DeviceUsage)],
) -> Vec<(Evidence, Option<String>)> {
    let is_gpu = |usage: &DeviceUsage| matches!(usage.device, Device::Gpu(_));
    let mut found = Vec::new();
    for kind in [true, false] {
        let alike = told.iter().filter(|(_, usage)| is_gpu(usage) == kind);
        let (own, others): (Vec<_>, Vec<_>) = alike.partition(|(users, _)| {
            ranks.is_empty() || users.iter().any(|rank| ranks.contains(rank))
        });
        if !ranks.is_empty() && others.is_empty() {
            continue;
        }
        let peers: Vec<&DeviceUsage> = others.iter().map(|(_, usage)| usage).collect();
        let views = own.iter().map(|(users, usage)| {
            let is_named = |rank: &&u32| ranks.is_empty() || ranks.contains(rank);
            let ranks = users.iter().filter(is_named).copied().collect();
            View { ranks, usage, peers: &peers }
        });
        let views: Vec<View<'_>> = views.collect();
        for rule in RULES {
            let told = views.iter().filter_map(|view| Some((view, rule(view)?)));
            let worst =
                told.max_by(|(_, one), (_, other)| one.excess.total_cmp(&other.excess));
            let Some((view, Telling { label, text, values, look_at, .. })) = worst else {
                continue;
            };
            let advice =
                look_at.map(|what| format!("on {}, look at {what}", who(&view.ranks)));
            let evidence = Evidence::new(Method::Host, label, text, &values);
            found.push((Evidence { cause: cause(label), ..evidence }, advice));
        }
    }
    found
}

/// What a finding blames, if it says why something is slow and not only that it is.
fn cause(label: &str) -> Option<Cause> {
    match label {
        "gpu_slowed" | "pcie_link" | "nvlinks_down" => Some(Cause::Gpu),
        "link_speed" | "link_full" => Some(Cause::Network),
        _ => None,
    }
}

/// What may be worth telling, what explains most in front.
const RULES: [fn(&View<'_>) -> Option<Telling>; 7] =
    [slowed, pcie, nvlinks, link_speed, full, busy, errors];

impl View<'_> {
    fn name(&self) -> String {
        match &self.usage.device {
            Device::Gpu(_) => format!("the GPU of {}", who(&self.ranks)),
            Device::Card(name) => format!("{name} of the host of {}", who(&self.ranks)),
        }
    }

    fn own(&self, gauge: Gauge) -> Option<f64> {
        self.usage.gauge(gauge)
    }

    /// The median of its peers.
    fn usual(&self, gauge: Gauge) -> Option<f64> {
        let peers = self.peers.iter().filter_map(|peer| peer.gauge(gauge));
        median(&mut peers.collect::<Vec<_>>())
    }
}

fn beyond(excess: f64, least: f64) -> Option<f64> {
    Some(excess).filter(|excess| *excess >= least)
}

/// Something holds the clock of a GPU down.
fn slowed(view: &View<'_>) -> Option<Telling> {
    const CAUSES: [(Gauge, &str, &str, &str); 3] = [
        (Gauge::HeatShare, "heat", "heat_share", "the cooling of its GPU"),
        (
            Gauge::PowerBrakeShare,
            "a power brake",
            "power_brake_share",
            "the power supply of its host",
        ),
        (
            Gauge::PowerLimitShare,
            "its power limit",
            "power_limit_share",
            "the power limit of its GPU",
        ),
    ];
    let excess = |gauge| {
        let usual = view.usual(gauge);
        // Large jobs run at their power limit.
        let is_usual = usual.is_none() && gauge == Gauge::PowerLimitShare;
        beyond(view.own(gauge)? - usual.unwrap_or(0.0), SHARE_MIN).filter(|_| !is_usual)
    };
    let clock = view.own(Gauge::ClockMhz).zip(view.usual(Gauge::ClockMhz));
    let clock = clock.filter(|(own, usual)| *own < SPEED_RATIO * usual);
    let clocks = clock.map(|(own, usual)| {
        format!("it ran at {own:.0} MHz, its peers' at {usual:.0} MHz")
    });
    let mut values = Vec::new();
    if let Some((own, usual)) = clock {
        values.extend([("clock_mhz", own), ("peers_clock_mhz", usual)]);
    }
    let cause = CAUSES.iter().find_map(|cause| Some((cause, excess(cause.0)?)));
    let Some(((gauge, by, name, look_at), excess)) = cause else {
        let (own, usual) = clock?;
        return Some(Telling {
            label: "gpu_slowed",
            text: format!("{}: {}", view.name(), clocks?),
            values,
            excess: 1.0 - own / usual,
            look_at: Some("the clocks its GPU is set to".to_owned()),
        });
    };
    let own = view.own(*gauge)?;
    let mut text =
        format!("{by} slowed {} down for {} of the time", view.name(), share(own));
    if let Some(usual) = view.usual(*gauge) {
        text += &format!(", its peers' for {}", share(usual));
    }
    if let Some(clocks) = clocks {
        text += &format!("; {clocks}");
    }
    values.push((name, own));
    Some(Telling {
        label: "gpu_slowed",
        text,
        values,
        excess,
        look_at: Some((*look_at).to_owned()),
    })
}

/// A device has fewer or slower lanes of its host's bus than it could use and others have.
fn pcie(view: &View<'_>) -> Option<Telling> {
    let (lanes, most) = (view.own(Gauge::PcieLanes)?, view.own(Gauge::PcieLanesMost)?);
    let usual = view.usual(Gauge::PcieLanes);
    let speeds = view.own(Gauge::PcieGtPerS).zip(view.usual(Gauge::PcieGtPerS));
    let speeds = speeds.filter(|(own, usual)| *own < SPEED_RATIO * usual);
    let is_narrow = lanes < SPEED_RATIO * usual.unwrap_or(most).min(most);
    if !is_narrow && speeds.is_none() {
        return None;
    }
    let mut text =
        format!("{} uses {lanes:.0} of {most:.0} lanes of its host's bus", view.name());
    let mut values = vec![("pcie_lanes", lanes), ("pcie_lanes_most", most)];
    if let Some(usual) = usual {
        text += &format!(", its peers' {usual:.0}");
        values.push(("peers_pcie_lanes", usual));
    }
    if let Some((own, usual)) = speeds {
        text += &format!("; at {own:.0} GT/s, theirs {usual:.0}");
        values.extend([("pcie_gt_per_s", own), ("peers_pcie_gt_per_s", usual)]);
    }
    let speed = speeds.map_or(1.0, |(own, usual)| own / usual);
    let look_at =
        Some("the slot of this device: PCIe errors, seating, risers".to_owned());
    Some(Telling {
        label: "pcie_link",
        text,
        values,
        excess: 1.0 - speed * lanes / most,
        look_at,
    })
}

/// Fewer links to other GPUs are up than elsewhere.
fn nvlinks(view: &View<'_>) -> Option<Telling> {
    let (own, usual) = (view.own(Gauge::Nvlinks)?, view.usual(Gauge::Nvlinks)?);
    (own < SPEED_RATIO * usual).then(|| Telling {
        label: "nvlinks_down",
        text: format!("{} has {own:.0} NVLinks up, its peers' {usual:.0}", view.name()),
        values: vec![("nvlinks", own), ("peers_nvlinks", usual)],
        excess: usual - own,
        look_at: Some(
            "its NVLinks: nvidia-smi nvlink --status, the fabric manager".to_owned(),
        ),
    })
}

/// The link of a card is slower than those of others.
fn link_speed(view: &View<'_>) -> Option<Telling> {
    let (own, usual) =
        (view.own(Gauge::LinkBytesPerS)?, view.usual(Gauge::LinkBytesPerS)?);
    let gigabits = |bytes_per_s: f64| bytes_per_s * 8e-9;
    (own < SPEED_RATIO * usual).then(|| Telling {
        label: "link_speed",
        text: format!(
            "{} is linked at {:.0} Gbit/s, its peers' at {:.0}",
            view.name(),
            gigabits(own),
            gigabits(usual)
        ),
        values: vec![("link_bytes_per_s", own), ("peers_link_bytes_per_s", usual)],
        excess: 1.0 - own / usual,
        look_at: Some("the cable and the switch port of this card".to_owned()),
    })
}

/// The link of a card takes no more.
fn full(view: &View<'_>) -> Option<Telling> {
    let own = view.own(Gauge::FullShare)?;
    let usual = view.usual(Gauge::FullShare);
    let excess = beyond(own - usual.unwrap_or(0.0), SHARE_MIN)?;
    let mut text = format!("{} took no more for {} of the time", view.name(), share(own));
    let mut values = vec![("full_share", own)];
    if let Some(usual) = usual {
        text += &format!(", its peers' for {}", share(usual));
        values.push(("peers_full_share", usual));
    }
    let way = |gauge| view.own(gauge).unwrap_or(0.0);
    let (sent, received) = (way(Gauge::SentBytesPerS), way(Gauge::ReceivedBytesPerS));
    text +=
        &format!("; it sent {:.3} GB/s and received {:.3}", sent * 1e-9, received * 1e-9);
    values.extend([("sent_bytes_per_s", sent), ("received_bytes_per_s", received)]);
    let look_at = Some("who else uses this card, and what is read over it".to_owned());
    Some(Telling { label: "link_full", text, values, excess, look_at })
}

/// A GPU works where others wait, or the other way round.
fn busy(view: &View<'_>) -> Option<Telling> {
    let (own, usual) = (view.own(Gauge::BusyShare)?, view.usual(Gauge::BusyShare)?);
    let excess = beyond((own - usual).abs(), BUSY_MIN)?;
    let text = format!(
        "{} was busy for {} of the time, its peers' for {}",
        view.name(),
        share(own),
        share(usual)
    );
    let values = vec![("busy_share", own), ("peers_busy_share", usual)];
    Some(Telling { label: "gpu_busy", text, values, excess, look_at: None })
}

/// A device has counted errors, more than others.
fn errors(view: &View<'_>) -> Option<Telling> {
    let sum = |usage: &DeviceUsage| {
        usage.errors.values().map(|count| *count as f64).sum::<f64>()
    };
    let mut peers: Vec<f64> = view.peers.iter().map(|peer| sum(peer)).collect();
    let excess = sum(view.usage) - median(&mut peers).unwrap_or(0.0);
    let counters = view.usage.errors.iter().filter(|(_, count)| **count > 0);
    let named: Vec<String> =
        counters.map(|(name, count)| format!("{name} +{count}")).collect();
    (excess > 0.0).then(|| Telling {
        label: "device_errors",
        text: format!("{} counted errors: {}", view.name(), named.join(", ")),
        values: vec![("errors", sum(view.usage))],
        excess,
        look_at: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::documented::assert_documented;

    fn gpu(rank: u32, gauges: &[(Gauge, f64)]) -> (Vec<u32>, DeviceUsage) {
        device(vec![rank], Device::Gpu(rank), gauges)
    }

    fn card(ranks: &[u32], gauges: &[(Gauge, f64)]) -> (Vec<u32>, DeviceUsage) {
        device(ranks.to_vec(), Device::Card("eth0".into()), gauges)
    }

    fn device(
        ranks: Vec<u32>,
        device: Device,
        gauges: &[(Gauge, f64)],
    ) -> (Vec<u32>, DeviceUsage) {
        let mut usage = DeviceUsage::new(device);
        for (gauge, value) in gauges {
            usage.measure(*gauge, *value, 10.0);
        }
        (ranks, usage)
    }

    /// Label, text and advice of what is said of `ranks`.
    fn said(ranks: &[u32], told: &[(Vec<u32>, DeviceUsage)]) -> Vec<String> {
        let found = devices(ranks, told).into_iter();
        let line = |(evidence, advice): (Evidence, Option<String>)| {
            let what = advice.as_deref().and_then(|it| it.split_once("look at "));
            if let Some((_, what)) = what {
                assert_documented(what);
            }
            let advice = advice.map(|advice| format!(" -> {advice}")).unwrap_or_default();
            format!("{}: {}{advice}", evidence.label, evidence.text)
        };
        found.map(line).collect()
    }

    fn like(rank: u32) -> (Vec<u32>, DeviceUsage) {
        let gauges = [
            (Gauge::BusyShare, 0.9),
            (Gauge::ClockMhz, 1980.0),
            (Gauge::HeatShare, 0.0),
            (Gauge::PowerLimitShare, 0.6),
            (Gauge::PcieLanes, 16.0),
            (Gauge::PcieLanesMost, 16.0),
            (Gauge::PcieGtPerS, 32.0),
            (Gauge::Nvlinks, 18.0),
        ];
        gpu(rank, &gauges)
    }

    #[test]
    fn a_gpu_that_is_unlike_its_peers_is_told_with_what_to_look_at() {
        let hot = gpu(
            2,
            &[
                (Gauge::BusyShare, 0.97),
                (Gauge::ClockMhz, 1005.0),
                (Gauge::HeatShare, 0.78),
                (Gauge::PcieLanes, 8.0),
                (Gauge::PcieLanesMost, 16.0),
                (Gauge::PcieGtPerS, 8.0),
                (Gauge::Nvlinks, 12.0),
            ],
        );
        let told = [like(0), like(1), hot, like(3)];
        assert_eq!(
            said(&[2], &told),
            [
                "gpu_slowed: heat slowed the GPU of rank 2 down for 78 % of the time, its \
                 peers' for 0.0 %; it ran at 1005 MHz, its peers' at 1980 MHz -> on rank 2, \
                 look at the cooling of its GPU",
                "pcie_link: the GPU of rank 2 uses 8 of 16 lanes of its host's bus, its peers' \
                 16; at 8 GT/s, theirs 32 -> on rank 2, look at the slot of this device: PCIe \
                 errors, seating, risers",
                "nvlinks_down: the GPU of rank 2 has 12 NVLinks up, its peers' 18 -> on rank 2, \
                 look at its NVLinks: nvidia-smi nvlink --status, the fabric manager",
            ]
        );
        assert_eq!(said(&[1], &[like(0), like(1), like(3)]), [""; 0]);
        assert_eq!(said(&[2], &told[2..3]), [""; 0], "nobody to compare it with");
    }

    #[test]
    fn a_clock_that_is_held_down_for_no_reason_is_told_and_a_gpu_that_waits() {
        let slow = gpu(2, &[(Gauge::ClockMhz, 1200.0), (Gauge::BusyShare, 0.3)]);
        assert_eq!(
            said(&[2], &[like(0), like(1), slow]),
            [
                "gpu_slowed: the GPU of rank 2: it ran at 1200 MHz, its peers' at 1980 MHz -> \
                 on rank 2, look at the clocks its GPU is set to",
                "gpu_busy: the GPU of rank 2 was busy for 30 % of the time, its peers' for 90 %",
            ]
        );
    }

    #[test]
    fn a_card_all_ranks_share_says_nothing_of_one_of_them_but_of_all() {
        let gauges = [
            (Gauge::FullShare, 0.62),
            (Gauge::SentBytesPerS, 1e6),
            (Gauge::ReceivedBytesPerS, 11.9e9),
        ];
        let shared = [card(&[0, 1, 2, 3], &gauges)];
        assert_eq!(said(&[2], &shared), [""; 0]);
        let full = "link_full: eth0 of the host of ranks 0-3 took no more for 62 % of the time; \
                    it sent 0.001 GB/s and received 11.900 -> on ranks 0-3, look at who else \
                    uses this card, and what is read over it";
        assert_eq!(said(&[], &shared), [full]);
    }

    #[test]
    fn the_card_of_a_host_is_compared_with_those_of_others() {
        let mut slow = card(&[2, 3], &[(Gauge::LinkBytesPerS, 1.25e9)]);
        slow.1.errors = [("rx_errors".to_owned(), 7), ("tx_errors".to_owned(), 0)].into();
        let fast = |ranks: &[u32]| card(ranks, &[(Gauge::LinkBytesPerS, 12.5e9)]);
        assert_eq!(
            said(&[2], &[fast(&[0, 1]), slow, fast(&[4, 5])]),
            [
                "link_speed: eth0 of the host of rank 2 is linked at 10 Gbit/s, its peers' at \
                 100 -> on rank 2, look at the cable and the switch port of this card",
                "device_errors: eth0 of the host of rank 2 counted errors: rx_errors +7",
            ]
        );
    }
}
