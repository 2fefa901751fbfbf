//! What hosts say of devices: GPUs and network cards.

use model::{
    Action, Beside, Brake, Device, DevicePart, DeviceUsage, Gauge, Observation, Unlike, median,
};

/// Share of the time that a device must be slowed down or full, more than its peers, before it is
/// spoken of. Taste: limits are touched now and then everywhere.
const SHARE_MIN: f64 = 0.2;
/// The same of how busy it is: less says neither that it computes nor that it waits.
const BUSY_MIN: f64 = 0.25;
/// Part of its peers' clock or speed below which it is slow: clocks of like GPUs differ by a few
/// percent, links by halves.
const SPEED_RATIO: f64 = 0.9;

/// Share of the time up to which a GPU does nothing while its job stands still, and from which it
/// runs something: a collective that waits keeps a few multiprocessors of a hundred busy.
const RESTS: f64 = 0.002;
const RUNS: f64 = 0.008;
/// How much more or less power than the others a GPU draws that runs something else, of theirs and
/// in watts. Taste: GPUs of one kind that do the same differ by a tenth.
const POWER_RATIO: f64 = 1.3;
const POWER_MIN_W: f64 = 30.0;

/// How often a GPU did not answer any more, among its errors.
const GPU_LOST: &str = "gpu_lost";

/// A device and the ranks that use it, beside others of its kind.
struct View<'a> {
    ranks: Vec<u32>,
    usage: &'a DeviceUsage,
    peers: &'a [&'a DeviceUsage],
}

/// In what one device is unlike its peers.
struct Found {
    unlike: Unlike,
    /// How bad it is, beside the same of other devices.
    excess: f64,
    /// What to look at, if that is clear.
    look_at: Option<DevicePart>,
}

/// Finds what the devices of ranks did unlike those of others, and what to do if that is clear; of
/// an incident of all ranks, what holds back all jobs on such devices.
///
/// `used` is what each device did while the incident went on, with the ranks that use it. Devices
/// that all ranks share say nothing of why only some of them are slow.
pub fn devices(
    ranks: &[u32],
    used: &[(Vec<u32>, DeviceUsage)],
) -> Vec<(Observation, Option<Action>)> {
    let mut found = Vec::new();
    for are_gpus in [true, false] {
        let alike = used
            .iter()
            .filter(|(_, usage)| matches!(usage.device, Device::Gpu(_)) == are_gpus);
        let (own, others): (Vec<_>, Vec<_>) = alike.partition(|(users, _)| {
            ranks.is_empty() || users.iter().any(|rank| ranks.contains(rank))
        });
        if !ranks.is_empty() && others.is_empty() {
            continue;
        }
        let peers: Vec<&DeviceUsage> = others.iter().map(|(_, usage)| usage).collect();
        let views = own.iter().map(|(users, usage)| {
            let ranks = users
                .iter()
                .copied()
                .filter(|rank| ranks.is_empty() || ranks.contains(rank))
                .collect();
            View {
                ranks,
                usage,
                peers: &peers,
            }
        });
        let views: Vec<View<'_>> = views.collect();
        for rule in RULES {
            let worst = views
                .iter()
                .filter_map(|view| Some((view, rule(view)?)))
                // The worst one a rule: eight of one host would say the same eight times.
                .max_by(|(_, one), (_, other)| one.excess.total_cmp(&other.excess));
            let Some((
                view,
                Found {
                    unlike, look_at, ..
                },
            )) = worst
            else {
                continue;
            };
            let users = view.ranks.clone();
            let action = look_at.map(|part| Action::LookAtDevice {
                ranks: users.clone(),
                part,
            });
            let device = view.usage.device.clone();
            found.push((
                Observation::Device {
                    users,
                    device,
                    unlike,
                },
                action,
            ));
        }
    }
    found
}

/// What GPUs do in a job that stands still, and what to look at if some do something else than the
/// others; and the one with most errors.
///
/// `used` is what each device did meanwhile, with the ranks that use it.
///
/// # Properties
/// Each GPU that is like one that does something else is named too.
pub fn gpus_in_standstill(used: &[(Vec<u32>, DeviceUsage)]) -> Vec<(Observation, Option<Action>)> {
    let gpus = used
        .iter()
        .filter(|(_, usage)| matches!(usage.device, Device::Gpu(_)));
    let with_errors = gpus
        .filter(|(_, usage)| error_count(usage) > 0.0)
        .max_by(|(_, one), (_, other)| error_count(one).total_cmp(&error_count(other)))
        .map(|(users, usage)| {
            let found = Observation::Device {
                users: users.clone(),
                device: usage.device.clone(),
                unlike: Unlike::Errors(usage.errors.clone()),
            };
            let is_lost = usage.errors.get(GPU_LOST).is_some_and(|count| *count > 0);
            (found, is_lost.then(|| look_at_health(users.clone())))
        });
    with_errors.into_iter().chain(activity(used)).collect()
}

fn look_at_health(ranks: Vec<u32>) -> Action {
    let part = DevicePart::Health;
    Action::LookAtDevice { ranks, part }
}

/// Which GPUs do something else than the others; nothing if too little is known.
fn activity(used: &[(Vec<u32>, DeviceUsage)]) -> Option<(Observation, Option<Action>)> {
    let gpus: Vec<GpuActivity<'_>> = used
        .iter()
        .filter_map(|(users, usage)| {
            Some(GpuActivity {
                users,
                busy: usage.gauge(Gauge::BusyShare)?,
                watts: usage.gauge(Gauge::Watts),
            })
        })
        .collect();
    let (rest, run): (Vec<_>, Vec<_>) = gpus.iter().partition(|gpu| gpu.busy <= RESTS);
    // One that is neither has stopped or begun meanwhile.
    if gpus.len() < 2 || run.iter().any(|gpu| gpu.busy < RUNS) {
        return None;
    }
    let (unlike, others) = if rest.is_empty() || run.is_empty() {
        by_power(&gpus)
    } else if run.len() < rest.len() {
        (run, rest)
    } else {
        (rest, run)
    };
    let of_both = |gauge: fn(&GpuActivity<'_>) -> Option<f64>| {
        let [own, usual] = [&unlike, &others]
            .map(|gpus| median(&mut gpus.iter().filter_map(|gpu| gauge(gpu)).collect::<Vec<_>>()));
        Some(Beside {
            own: if unlike.is_empty() { usual? } else { own? },
            peers: usual.filter(|_| !unlike.is_empty()),
        })
    };
    let ranks_of = |gpus: &[&GpuActivity<'_>]| {
        let mut ranks: Vec<u32> = gpus.iter().flat_map(|gpu| gpu.users).copied().collect();
        ranks.sort_unstable();
        ranks.dedup();
        ranks
    };
    let ranks = ranks_of(&unlike);
    let action = (!ranks.is_empty()).then(|| look_at_health(ranks.clone()));
    let observation = Observation::GpusInStandstill {
        busy: of_both(|gpu| Some(gpu.busy))?,
        watts: of_both(|gpu| gpu.watts),
        others: ranks_of(&others),
        unlike: ranks,
    };
    Some((observation, action))
}

/// What a GPU does, of whatever ranks.
struct GpuActivity<'a> {
    users: &'a [u32],
    busy: f64,
    watts: Option<f64>,
}

/// The GPUs that draw other power than most, and the others.
fn by_power<'a, 'gpu>(
    gpus: &'a [GpuActivity<'gpu>],
) -> (Vec<&'a GpuActivity<'gpu>>, Vec<&'a GpuActivity<'gpu>>) {
    let usual_w = median(&mut gpus.iter().filter_map(|gpu| gpu.watts).collect::<Vec<_>>());
    let (unlike, others): (Vec<_>, Vec<_>) = gpus.iter().partition(|gpu| {
        gpu.watts.zip(usual_w).is_some_and(|(own_w, usual_w)| {
            let is_far = own_w.max(usual_w) > POWER_RATIO * own_w.min(usual_w);
            is_far && (own_w - usual_w).abs() > POWER_MIN_W
        })
    });
    // Where power is all over the place, it says nothing of who is unlike whom.
    if unlike.len() < others.len() {
        (unlike, others)
    } else {
        (Vec::new(), gpus.iter().collect())
    }
}

/// What may be worth telling, what explains most in front.
const RULES: [fn(&View<'_>) -> Option<Found>; 7] =
    [slowed, pcie, nvlinks, link_speed, full, busy, errors];

impl View<'_> {
    fn own(&self, gauge: Gauge) -> Option<f64> {
        self.usage.gauge(gauge)
    }

    /// The median of its peers.
    fn usual(&self, gauge: Gauge) -> Option<f64> {
        let peers = self.peers.iter().filter_map(|peer| peer.gauge(gauge));
        median(&mut peers.collect::<Vec<_>>())
    }

    /// Both, where the device and its peers have the gauge.
    fn both(&self, gauge: Gauge) -> Option<(f64, f64)> {
        self.own(gauge).zip(self.usual(gauge))
    }

    /// Both, where the device is slower than its peers.
    fn slower(&self, gauge: Gauge) -> Option<(f64, f64)> {
        self.both(gauge)
            .filter(|(own, usual)| *own < SPEED_RATIO * usual)
    }
}

fn beside((own, usual): (f64, f64)) -> Beside {
    Beside {
        own,
        peers: Some(usual),
    }
}

fn beyond(excess: f64, least: f64) -> Option<f64> {
    Some(excess).filter(|excess| *excess >= least)
}

/// Something holds the clock of a GPU down.
fn slowed(view: &View<'_>) -> Option<Found> {
    const BRAKES: [(Gauge, Brake, DevicePart); 3] = [
        (Gauge::HeatShare, Brake::Heat, DevicePart::Cooling),
        (
            Gauge::PowerBrakeShare,
            Brake::PowerBrake,
            DevicePart::PowerSupply,
        ),
        (
            Gauge::PowerLimitShare,
            Brake::PowerLimit,
            DevicePart::PowerLimit,
        ),
    ];
    let excess = |gauge| {
        let usual = view.usual(gauge);
        // Large jobs run at their power limit.
        let is_usual = usual.is_none() && gauge == Gauge::PowerLimitShare;
        beyond(view.own(gauge)? - usual.unwrap_or(0.0), SHARE_MIN).filter(|_| !is_usual)
    };
    let clock = view.slower(Gauge::ClockMhz);
    let clock_mhz = clock.map(beside);
    let brake = BRAKES
        .into_iter()
        .find_map(|brake| Some((brake, excess(brake.0)?)));
    let Some(((gauge, brake, part), excess)) = brake else {
        let (own, usual) = clock?;
        return Some(Found {
            unlike: Unlike::Slowed {
                brake: None,
                clock_mhz,
            },
            excess: 1.0 - own / usual,
            look_at: Some(DevicePart::ClockSettings),
        });
    };
    let share = Beside {
        own: view.own(gauge)?,
        peers: view.usual(gauge),
    };
    Some(Found {
        unlike: Unlike::Slowed {
            brake: Some((brake, share)),
            clock_mhz,
        },
        excess,
        look_at: Some(part),
    })
}

/// A device has fewer or slower lanes of its host's bus than it could use and others have.
fn pcie(view: &View<'_>) -> Option<Found> {
    let (lanes, most) = (view.own(Gauge::PcieLanes)?, view.own(Gauge::PcieLanesMost)?);
    let usual = view.usual(Gauge::PcieLanes);
    let speeds = view.slower(Gauge::PcieGtPerS);
    // The less of what it could use and what others have: where all slots are narrow, none
    // is at fault.
    let is_narrow = lanes < SPEED_RATIO * usual.unwrap_or(most).min(most);
    if !is_narrow && speeds.is_none() {
        return None;
    }
    let speed = speeds.map_or(1.0, |(own, usual)| own / usual);
    Some(Found {
        unlike: Unlike::Pcie {
            lanes: Beside {
                own: lanes,
                peers: usual,
            },
            lanes_most: most,
            speed: speeds.map(beside),
        },
        // What the link carries is the product of its lanes and their speed.
        excess: 1.0 - speed * lanes / most,
        look_at: Some(DevicePart::Slot),
    })
}

/// Fewer links to other GPUs are up than elsewhere.
fn nvlinks(view: &View<'_>) -> Option<Found> {
    let (own, usual) = view.slower(Gauge::Nvlinks)?;
    Some(Found {
        unlike: Unlike::Nvlinks(beside((own, usual))),
        excess: usual - own,
        look_at: Some(DevicePart::Nvlinks),
    })
}

/// The link of a card is slower than those of others.
fn link_speed(view: &View<'_>) -> Option<Found> {
    let (own, usual) = view.slower(Gauge::LinkBytesPerS)?;
    Some(Found {
        unlike: Unlike::LinkSpeed(beside((own, usual))),
        excess: 1.0 - own / usual,
        look_at: Some(DevicePart::Cable),
    })
}

/// The link of a card takes no more.
fn full(view: &View<'_>) -> Option<Found> {
    let own = view.own(Gauge::FullShare)?;
    // Without peers, in an incident of all ranks, what fills a card counts by itself.
    let peers = view.usual(Gauge::FullShare);
    let excess = beyond(own - peers.unwrap_or(0.0), SHARE_MIN)?;
    Some(Found {
        unlike: Unlike::Full {
            share: Beside { own, peers },
            sent_bytes_per_s: view.own(Gauge::SentBytesPerS).unwrap_or(0.0),
            received_bytes_per_s: view.own(Gauge::ReceivedBytesPerS).unwrap_or(0.0),
        },
        excess,
        look_at: Some(DevicePart::OtherUsers),
    })
}

/// A GPU works where others wait, or the other way round.
fn busy(view: &View<'_>) -> Option<Found> {
    let (own, usual) = view.both(Gauge::BusyShare)?;
    let excess = beyond((own - usual).abs(), BUSY_MIN)?;
    Some(Found {
        unlike: Unlike::Busy(beside((own, usual))),
        excess,
        // It shows which of them computes and which waits, not what is wrong.
        look_at: None,
    })
}

fn error_count(usage: &DeviceUsage) -> f64 {
    usage.errors.values().map(|count| *count as f64).sum()
}

/// A device has counted errors, more than others.
fn errors(view: &View<'_>) -> Option<Found> {
    let mut peers: Vec<f64> = view.peers.iter().map(|peer| error_count(peer)).collect();
    // Of an incident of all ranks there are no peers: then each error counts.
    let excess = error_count(view.usage) - median(&mut peers).unwrap_or(0.0);
    let unlike = Unlike::Errors(view.usage.errors.clone());
    (excess > 0.0).then_some(Found {
        unlike,
        excess,
        look_at: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(rank: u32, gauges: &[(Gauge, f64)]) -> (Vec<u32>, DeviceUsage) {
        device(vec![rank], Device::Gpu(rank), gauges)
    }

    fn card(ranks: &[u32], gauges: &[(Gauge, f64)]) -> (Vec<u32>, DeviceUsage) {
        device(ranks.to_vec(), Device::Card("eth0".into()), gauges)
    }

    fn device(ranks: Vec<u32>, device: Device, gauges: &[(Gauge, f64)]) -> (Vec<u32>, DeviceUsage) {
        let mut usage = DeviceUsage::new(device);
        for (gauge, value) in gauges {
            usage.measure(*gauge, *value, 10.0);
        }
        (ranks, usage)
    }

    /// In what devices of `ranks` are unlike others, who uses them, and what to look at.
    fn found(
        ranks: &[u32],
        used: &[(Vec<u32>, DeviceUsage)],
    ) -> Vec<(Unlike, Vec<u32>, Option<DevicePart>)> {
        let found = devices(ranks, used).into_iter();
        let unlike = |(fact, action): (Observation, Option<Action>)| {
            let Observation::Device { users, unlike, .. } = fact else {
                panic!("{fact:?}")
            };
            let part = action.map(|action| match action {
                Action::LookAtDevice { ranks, part } if ranks == users => part,
                other => panic!("{other:?}"),
            });
            (unlike, users, part)
        };
        found.map(unlike).collect()
    }

    /// Whose GPUs are unlike the others in a job that stands still, by their busy shares and watts.
    fn unlike(gpus: &[(f64, f64)]) -> Option<Vec<u32>> {
        let gpus = (0..).zip(gpus);
        let used: Vec<_> = gpus
            .map(|(rank, (busy, watts))| {
                gpu(rank, &[(Gauge::BusyShare, *busy), (Gauge::Watts, *watts)])
            })
            .collect();
        let (what, action) = gpus_in_standstill(&used).pop()?;
        let Observation::GpusInStandstill { unlike, .. } = what else {
            panic!("{what:?}")
        };
        assert_eq!(action.is_some(), !unlike.is_empty());
        Some(unlike)
    }

    #[test]
    fn gpus_that_do_something_else_in_a_standstill_are_named() {
        let spins = (0.06, 150.0);
        assert_eq!(unlike(&[spins, (0.0, 70.0), spins, spins]), Some(vec![1]));
        let two_rest = [spins, (0.0, 70.0), (0.0, 72.0), spins, spins];
        assert_eq!(unlike(&two_rest), Some(vec![1, 2]));
        assert_eq!(
            unlike(&[spins, spins, (1.0, 410.0)]),
            Some(vec![2]),
            "a kernel that does not end"
        );
        assert_eq!(unlike(&[(0.0, 70.0), (0.0, 72.0), spins]), Some(vec![2]));
    }

    #[test]
    fn gpus_that_do_alike_in_a_standstill_are_not() {
        assert_eq!(unlike(&[(0.06, 150.0), (0.08, 170.0)]), Some(vec![]));
        assert_eq!(unlike(&[(0.0, 70.0), (0.0, 99.0)]), Some(vec![]));
        // Which of two is unusual?
        assert_eq!(unlike(&[(1.0, 150.0), (1.0, 400.0)]), Some(vec![]));
        assert_eq!(unlike(&[(0.06, 150.0)]), None);
        // It worked until a moment ago.
        assert_eq!(unlike(&[(0.06, 150.0), (0.004, 90.0)]), None);
        assert_eq!(unlike(&[]), None);
    }

    #[test]
    fn a_gpu_that_is_lost_in_a_standstill_is_told_by_its_errors() {
        let (users, mut lost) = gpu(1, &[]);
        lost.errors.insert(GPU_LOST.to_owned(), 9);
        let spins = |rank| gpu(rank, &[(Gauge::BusyShare, 1.0)]);
        let found = gpus_in_standstill(&[spins(0), (users, lost), spins(2)]);
        let (Observation::Device { users, .. }, Some(_)) = &found[0] else {
            panic!("{found:?}")
        };
        assert_eq!(users, &[1]);
    }

    fn beside(own: f64, peers: f64) -> Beside {
        Beside {
            own,
            peers: Some(peers),
        }
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
    fn a_gpu_that_is_unlike_its_peers_is_found_with_what_to_look_at() {
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
        let used = [like(0), like(1), hot, like(3)];
        let slowed = Unlike::Slowed {
            brake: Some((Brake::Heat, beside(0.78, 0.0))),
            clock_mhz: Some(beside(1005.0, 1980.0)),
        };
        let pcie = Unlike::Pcie {
            lanes: beside(8.0, 16.0),
            lanes_most: 16.0,
            speed: Some(beside(8.0, 32.0)),
        };
        let nvlinks = Unlike::Nvlinks(beside(12.0, 18.0));
        assert_eq!(
            found(&[2], &used),
            [
                (slowed, vec![2], Some(DevicePart::Cooling)),
                (pcie, vec![2], Some(DevicePart::Slot)),
                (nvlinks, vec![2], Some(DevicePart::Nvlinks)),
            ]
        );
        assert_eq!(found(&[1], &[like(0), like(1), like(3)]), []);
        assert_eq!(found(&[2], &used[2..3]), [], "nobody to compare it with");
    }

    #[test]
    fn a_clock_that_is_held_down_for_no_reason_is_found_and_a_gpu_that_waits() {
        let slow = gpu(2, &[(Gauge::ClockMhz, 1200.0), (Gauge::BusyShare, 0.3)]);
        let clock_mhz = Some(beside(1200.0, 1980.0));
        let slowed = Unlike::Slowed {
            brake: None,
            clock_mhz,
        };
        assert_eq!(
            found(&[2], &[like(0), like(1), slow]),
            [
                (slowed, vec![2], Some(DevicePart::ClockSettings)),
                (Unlike::Busy(beside(0.3, 0.9)), vec![2], None),
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
        assert_eq!(found(&[2], &shared), []);
        let full = Unlike::Full {
            share: Beside {
                own: 0.62,
                peers: None,
            },
            sent_bytes_per_s: 1e6,
            received_bytes_per_s: 11.9e9,
        };
        let users = vec![0, 1, 2, 3];
        assert_eq!(
            found(&[], &shared),
            [(full, users, Some(DevicePart::OtherUsers))]
        );
    }

    #[test]
    fn the_card_of_a_host_is_compared_with_those_of_others() {
        let mut slow = card(&[2, 3], &[(Gauge::LinkBytesPerS, 1.25e9)]);
        slow.1.errors = [("rx_errors".to_owned(), 7), ("tx_errors".to_owned(), 0)].into();
        let errors = Unlike::Errors(slow.1.errors.clone());
        let fast = |ranks: &[u32]| card(ranks, &[(Gauge::LinkBytesPerS, 12.5e9)]);
        let speed = Unlike::LinkSpeed(beside(1.25e9, 12.5e9));
        assert_eq!(
            found(&[2], &[fast(&[0, 1]), slow, fast(&[4, 5])]),
            [
                (speed, vec![2], Some(DevicePart::Cable)),
                (errors, vec![2], None)
            ]
        );
    }
}
