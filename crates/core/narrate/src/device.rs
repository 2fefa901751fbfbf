//! Devices that are unlike those of other ranks.

use model::{Beside, Brake, Device, Unlike};

use crate::fact::Worded;
use crate::words::{of, share, who};

pub(crate) fn unlike(users: &[u32], device: &Device, unlike: &Unlike) -> Worded {
    let name = match device {
        Device::Gpu(_) => format!("the GPU of {}", who(users)),
        Device::Card(name) => format!("{name} of the host of {}", who(users)),
    };
    match unlike {
        Unlike::Slowed { brake, clock_mhz } => slowed(&name, *brake, *clock_mhz),
        Unlike::Pcie {
            lanes,
            lanes_most,
            speed,
        } => pcie(&name, *lanes, *lanes_most, *speed),
        Unlike::Nvlinks(links) => {
            let (own, usual) = both(*links);
            let text = format!("{name} has {own:.0} NVLinks up, its peers' {usual:.0}");
            Worded::new(
                "nvlinks_down",
                text,
                &[("nvlinks", own), ("peers_nvlinks", usual)],
            )
        }
        Unlike::LinkSpeed(speed) => {
            let (own, usual) = both(*speed);
            let [own_gbit, usual_gbit] = [own, usual].map(|bytes_per_s| bytes_per_s * 8e-9);
            let text =
                format!("{name} is linked at {own_gbit:.0} Gbit/s, its peers' at {usual_gbit:.0}");
            let values = [("link_bytes_per_s", own), ("peers_link_bytes_per_s", usual)];
            Worded::new("link_speed", text, &values)
        }
        Unlike::Full {
            share: full,
            sent_bytes_per_s,
            received_bytes_per_s,
        } => {
            let mut text = format!("{name} was full for {} of the time", share(full.own));
            let mut values = vec![("full_share", full.own)];
            if let Some(usual) = full.peers {
                text += &format!(", its peers' for {}", share(usual));
                values.push(("peers_full_share", usual));
            }
            text += &format!(
                "; it sent {:.3} GB/s and received {:.3}",
                sent_bytes_per_s * 1e-9,
                received_bytes_per_s * 1e-9
            );
            values.extend([
                ("sent_bytes_per_s", *sent_bytes_per_s),
                ("received_bytes_per_s", *received_bytes_per_s),
            ]);
            Worded::new("link_full", text, &values)
        }
        Unlike::Busy(busy) => {
            let (own, usual) = both(*busy);
            let text = format!(
                "{name} was busy for {} of the time, its peers' for {}",
                share(own),
                share(usual)
            );
            Worded::new(
                "gpu_busy",
                text,
                &[("busy_share", own), ("peers_busy_share", usual)],
            )
        }
        Unlike::Errors(counters) => {
            let named: Vec<String> = counters
                .iter()
                .filter(|(_, count)| **count > 0)
                .map(|(name, count)| format!("{name} +{count}"))
                .collect();
            let text = format!("{name} counted errors: {}", named.join(", "));
            // Hosts send the counts: their sum may not fit an integer.
            let sum = counters.values().map(|count| *count as f64).sum();
            Worded::new("device_errors", text, &[("errors", sum)])
        }
    }
}

/// What GPUs do while nothing moves: first those that are unlike the others.
pub(crate) fn in_standstill(
    unlike: &[u32],
    others: &[u32],
    busy: Beside,
    watts: Option<Beside>,
) -> Worded {
    let first = if unlike.is_empty() { others } else { unlike };
    let mut text = format!(
        "the {} of {} {} busy for {} of the time",
        of(first, "GPU", "GPUs"),
        who(first),
        of(first, "was", "were"),
        share(busy.own)
    );
    let mut values = vec![("busy_share", busy.own)];
    if let Some(watts) = watts {
        text += &format!(" and drew {:.0} W", watts.own);
        values.push(("watts", watts.own));
    }
    if let Some(usual) = busy.peers {
        text += &format!(
            ", {} of {} for {}",
            of(others, "that", "those"),
            who(others),
            share(usual)
        );
        values.push(("peers_busy_share", usual));
    }
    if let Some(usual) = watts.and_then(|watts| watts.peers) {
        text += &format!(" and {usual:.0} W");
        values.push(("peers_watts", usual));
    }
    Worded::new("gpu_activity", text, &values)
}

fn both(beside: Beside) -> (f64, f64) {
    (beside.own, beside.peers.unwrap_or(beside.own))
}

fn slowed(name: &str, brake: Option<(Brake, Beside)>, clock_mhz: Option<Beside>) -> Worded {
    let mut values = Vec::new();
    let clock = clock_mhz.map(|clock| {
        let (own, usual) = both(clock);
        values.extend([("clock_mhz", own), ("peers_clock_mhz", usual)]);
        format!("it ran at {own:.0} MHz, its peers' at {usual:.0} MHz")
    });
    let text = match brake {
        None => format!("{name}: {}", clock.unwrap_or_default()),
        Some((brake, for_share)) => {
            let (by, value) = match brake {
                Brake::Heat => ("heat", "heat_share"),
                Brake::PowerBrake => ("a power brake", "power_brake_share"),
                Brake::PowerLimit => ("its power limit", "power_limit_share"),
            };
            values.push((value, for_share.own));
            let mut text = format!(
                "{by} slowed {name} down for {} of the time",
                share(for_share.own)
            );
            if let Some(usual) = for_share.peers {
                text += &format!(", its peers' for {}", share(usual));
            }
            match clock {
                Some(clock) => format!("{text}; {clock}"),
                None => text,
            }
        }
    };
    Worded::new("gpu_slowed", text, &values)
}

fn pcie(name: &str, lanes: Beside, lanes_most: f64, speed: Option<Beside>) -> Worded {
    let mut text = format!(
        "{name} uses {:.0} of {lanes_most:.0} lanes of its host's bus",
        lanes.own
    );
    let mut values = vec![("pcie_lanes", lanes.own), ("pcie_lanes_most", lanes_most)];
    if let Some(usual) = lanes.peers {
        text += &format!(", its peers' {usual:.0}");
        values.push(("peers_pcie_lanes", usual));
    }
    if let Some(speed) = speed {
        let (own, usual) = both(speed);
        text += &format!("; at {own:.0} GT/s, theirs {usual:.0}");
        values.extend([("pcie_gt_per_s", own), ("peers_pcie_gt_per_s", usual)]);
    }
    Worded::new("pcie_link", text, &values)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn beside(own: f64, peers: f64) -> Beside {
        Beside {
            own,
            peers: Some(peers),
        }
    }

    fn said(users: &[u32], device: &Device, found: &Unlike) -> String {
        let Worded { label, text, .. } = unlike(users, device, found);
        format!("{label}: {text}")
    }

    #[test]
    fn gpus_that_are_unlike_their_peers_are_worded() {
        let said = |found| said(&[2], &Device::Gpu(2), &found);
        let clock_mhz = Some(beside(1005.0, 1980.0));
        let brake = Some((Brake::Heat, beside(0.78, 0.0)));
        assert_eq!(
            said(Unlike::Slowed { brake, clock_mhz }),
            "gpu_slowed: heat slowed the GPU of rank 2 down for 78 % of the time, its peers' for \
             0.0 %; it ran at 1005 MHz, its peers' at 1980 MHz"
        );
        assert_eq!(
            said(Unlike::Slowed {
                brake: None,
                clock_mhz
            }),
            "gpu_slowed: the GPU of rank 2: it ran at 1005 MHz, its peers' at 1980 MHz"
        );
        let (lanes, speed) = (beside(8.0, 16.0), Some(beside(8.0, 32.0)));
        assert_eq!(
            said(Unlike::Pcie {
                lanes,
                lanes_most: 16.0,
                speed
            }),
            "pcie_link: the GPU of rank 2 uses 8 of 16 lanes of its host's bus, its peers' 16; \
             at 8 GT/s, theirs 32"
        );
        assert_eq!(
            said(Unlike::Nvlinks(beside(12.0, 18.0))),
            "nvlinks_down: the GPU of rank 2 has 12 NVLinks up, its peers' 18"
        );
        assert_eq!(
            said(Unlike::Busy(beside(0.3, 0.9))),
            "gpu_busy: the GPU of rank 2 was busy for 30 % of the time, its peers' for 90 %"
        );
    }

    #[test]
    fn what_gpus_do_in_a_standstill_is_worded() {
        let (stopped, works) = (beside(0.0, 1.0), beside(71.0, 152.0));
        let said = |unlike: &[u32], others: &[u32], busy, watts| {
            let Worded { label, text, .. } = in_standstill(unlike, others, busy, watts);
            format!("{label}: {text}")
        };
        assert_eq!(
            said(&[2], &[0, 1, 3], stopped, Some(works)),
            "gpu_activity: the GPU of rank 2 was busy for 0.0 % of the time and drew 71 W, those of \
             ranks 0-1,3 for 100 % and 152 W"
        );
        assert_eq!(
            said(&[2, 3], &[0], stopped, None),
            "gpu_activity: the GPUs of ranks 2-3 were busy for 0.0 % of the time, that of rank 0 for \
             100 %"
        );
        let all = Beside {
            own: 1.0,
            peers: None,
        };
        assert_eq!(
            said(&[], &[0, 1], all, None),
            "gpu_activity: the GPUs of ranks 0-1 were busy for 100 % of the time"
        );
    }

    #[test]
    fn cards_that_are_unlike_their_peers_are_worded() {
        let card = Device::Card("eth0".to_owned());
        let full = Unlike::Full {
            share: Beside {
                own: 0.62,
                peers: None,
            },
            sent_bytes_per_s: 1e6,
            received_bytes_per_s: 11.9e9,
        };
        assert_eq!(
            said(&[0, 1, 2, 3], &card, &full),
            "link_full: eth0 of the host of ranks 0-3 was full for 62 % of the time; it sent 0.001 \
             GB/s and received 11.900"
        );
        assert_eq!(
            said(&[2], &card, &Unlike::LinkSpeed(beside(1.25e9, 12.5e9))),
            "link_speed: eth0 of the host of rank 2 is linked at 10 Gbit/s, its peers' at 100"
        );
        let counters = [("rx_errors".to_owned(), 7), ("tx_errors".to_owned(), 0)];
        assert_eq!(
            said(&[2], &card, &Unlike::Errors(counters.into())),
            "device_errors: eth0 of the host of rank 2 counted errors: rx_errors +7"
        );
    }
}
