//! What the kernel and drivers say of this host's devices: network cards, GPUs, and the links of
//! both to the host.

mod cards;
mod gpus;
mod pcie;

use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use model::{Device, DeviceUsage, Input};
use pattern::Resource;
use ring::RankState;
use trace::Counter;

use cards::Cards;
use gpus::{GpuLook, Gpus};

use crate::probes::KEPT_NS;

/// Where the kernel shows devices.
const SYSTEM: &str = "/sys";
/// Where the library of NVIDIA's driver is asked for.
const NVML: &str = "libnvidia-ml.so.1";

/// Utilisation from 0 to 1 since a time of the wall clock in nanoseconds.
type Samples = VecDeque<(i64, f32)>;

/// The devices of a host.
#[derive(Debug)]
pub(crate) struct HostDevices {
    cards: Cards,
    gpus: Gpus,
    /// What each device did that was not reported yet.
    usages: BTreeMap<Device, DeviceUsage>,
    /// Counters of errors as they stood last.
    counted: BTreeMap<(Device, String), u64>,
    /// Utilisation, lately.
    samples: BTreeMap<(Option<u32>, Resource), Samples>,
    ranks: HostRanks,
    first_step: Option<u32>,
}

/// The ranks of a host, and which GPU each uses.
#[derive(Debug, Default)]
struct HostRanks {
    all: Vec<u32>,
    step: u32,
    spans_hosts: bool,
    /// What the processes were given, by pid.
    seats: BTreeMap<u32, Seat>,
    gpu_of: BTreeMap<u32, u32>,
}

/// Where a rank's process was told to compute.
#[derive(Debug)]
struct Seat {
    rank: u32,
    local_rank: u32,
    /// `CUDA_VISIBLE_DEVICES`.
    visible: Option<String>,
}

impl Default for HostDevices {
    fn default() -> Self {
        Self::new(Path::new(SYSTEM), OsStr::new(NVML))
    }
}

impl HostDevices {
    fn new(system: &Path, nvml: &OsStr) -> Self {
        Self {
            cards: Cards::under(system),
            gpus: Gpus::watch(nvml, system),
            usages: BTreeMap::new(),
            counted: BTreeMap::new(),
            samples: BTreeMap::new(),
            ranks: HostRanks::default(),
            first_step: None,
        }
    }

    /// Looks at all of them, at a time of the wall clock.
    pub(crate) fn look(&mut self, at_ns: u64, closely: bool, ranks: &[RankState]) {
        self.ranks.look(ranks);
        self.first_step.get_or_insert(self.ranks.step);
        let Self { cards, usages, .. } = self;
        let full_share = cards.look(at_ns, &mut |name, gauge, value, over_s| {
            card(usages, name).measure(gauge, value, over_s);
        });
        if let Some(share) = full_share {
            keep(&mut self.samples, None, Resource::Network, at_ns, share);
        }
        let looks: Vec<GpuLook> = self.gpus.take(closely).collect();
        for look in looks {
            self.take(look);
        }
    }

    fn take(&mut self, look: GpuLook) {
        let device = Device::Gpu(look.gpu);
        let usage = self
            .usages
            .entry(device.clone())
            .or_insert_with(|| DeviceUsage::new(device.clone()));
        for (gauge, value) in look.gauges {
            usage.measure(gauge, value, look.lasted_s);
        }
        for (resource, share) in look.shares {
            keep(
                &mut self.samples,
                Some(look.gpu),
                resource,
                look.at_ns,
                share,
            );
        }
        self.count(&device, look.errors);
        if let Some(pids) = look.pids {
            self.ranks.seat(look.gpu, &look.uuid, &pids);
        }
    }

    /// Adds what the counters of a device have grown by since it was looked at first.
    fn count(&mut self, device: &Device, errors: impl IntoIterator<Item = (String, u64)>) {
        for (name, count) in errors {
            let before = self.counted.insert((device.clone(), name.clone()), count);
            // Counters begin with the driver: what they had at the first look is not of this job.
            let grown = before.map_or(0, |before| count.saturating_sub(before));
            if grown > 0
                && let Some(usage) = self.usages.get_mut(device)
            {
                *usage.errors.entry(name).or_default() += grown;
            }
        }
    }

    /// Reports what was not reported yet.
    pub(crate) fn tell(&mut self, take: &mut dyn FnMut(Input)) {
        let Self { cards, usages, .. } = self;
        // Once a telling: what it weighs against itself does not matter.
        cards.look_at_links(&mut |name, gauge, value| {
            card(usages, name).measure(gauge, value, 1.0);
        });
        let errors: Vec<_> = self.cards.errors().collect();
        for (name, errors) in errors {
            self.count(&Device::Card(name), errors);
        }
        let last_step = self.ranks.step;
        // After a restart of the job steps count from the beginning again.
        let first_step = self
            .first_step
            .replace(last_step)
            .map_or(last_step, |step| step.min(last_step));
        for (device, usage) in std::mem::take(&mut self.usages) {
            let ranks = match &device {
                // What a card carries cannot be divided by rank: it is reported of all that use the
                // host.
                Device::Card(_) => self.ranks.all.clone(),
                Device::Gpu(gpu) => self.ranks.of_gpu(*gpu),
            };
            if !ranks.is_empty() {
                let usage = Box::new(usage);
                take(Input::Device {
                    ranks,
                    first_step,
                    last_step,
                    usage,
                });
            }
        }
    }

    /// How much of what a rank uses was used since then. Collectives of a job on one host go over
    /// no card.
    pub(crate) fn since(&self, rank: u32, at_ns: u64) -> impl Iterator<Item = Counter> {
        let gpu = self.ranks.gpu_of.get(&rank).copied();
        let at_ns = i64::try_from(at_ns).unwrap_or(i64::MAX);
        let spans_hosts = self.ranks.spans_hosts;
        self.samples
            .iter()
            .filter(move |((of, _), _)| match of {
                None => spans_hosts,
                of => *of == gpu,
            })
            .map(move |((_, resource), samples)| Counter {
                resource: *resource,
                samples: samples
                    .iter()
                    .filter(|(at, _)| *at >= at_ns)
                    .copied()
                    .collect(),
            })
    }
}

/// What a card did that was not reported yet.
fn card<'a>(usages: &'a mut BTreeMap<Device, DeviceUsage>, name: &str) -> &'a mut DeviceUsage {
    let device = Device::Card(name.to_owned());
    usages
        .entry(device.clone())
        .or_insert_with(|| DeviceUsage::new(device))
}

fn keep(
    samples: &mut BTreeMap<(Option<u32>, Resource), Samples>,
    gpu: Option<u32>,
    resource: Resource,
    at_ns: u64,
    share: f64,
) {
    let kept = samples.entry((gpu, resource)).or_default();
    let at_ns = i64::try_from(at_ns).unwrap_or(i64::MAX);
    kept.push_back((at_ns, share.clamp(0.0, 1.0) as f32));
    let kept_ns = KEPT_NS.cast_signed();
    while kept
        .front()
        .is_some_and(|(first_ns, _)| at_ns - first_ns > kept_ns)
    {
        kept.pop_front();
    }
}

impl HostRanks {
    fn look(&mut self, ranks: &[RankState]) {
        self.all.clear();
        // They start over with the job.
        self.step = ranks
            .iter()
            .filter_map(|rank| rank.step)
            .max()
            .unwrap_or(self.step);
        for rank in ranks {
            if rank.step.is_none() {
                continue;
            }
            self.all.push(rank.rank);
            self.spans_hosts = rank.spans_hosts;
            self.seats.entry(rank.pid).or_insert_with(|| Seat {
                rank: rank.rank,
                local_rank: rank.local_rank,
                visible: variable(rank.pid, "CUDA_VISIBLE_DEVICES"),
            });
        }
        self.all.sort_unstable();
        self.seats.retain(|_, seat| self.all.contains(&seat.rank));
    }

    fn of_gpu(&self, gpu: u32) -> Vec<u32> {
        self.gpu_of
            .iter()
            .filter(|(rank, of)| **of == gpu && self.all.contains(rank))
            .map(|(rank, _)| *rank)
            .collect()
    }

    /// Finds out who uses a GPU on which these processes compute. In a container the driver's
    /// numbers of processes are the host's: then it is the GPU each rank was given.
    fn seat(&mut self, gpu: u32, uuid: &str, pids: &[u32]) {
        for (pid, seat) in &self.seats {
            if pids.contains(pid) || seat.is_at(gpu, uuid) && !self.gpu_of.contains_key(&seat.rank)
            {
                self.gpu_of.insert(seat.rank, gpu);
            }
        }
    }
}

impl Seat {
    /// Whether it was given this GPU: the one of its place among those it may see.
    fn is_at(&self, gpu: u32, uuid: &str) -> bool {
        // Unset, a process may see all GPUs, and by convention takes the one of its local rank.
        let Some(visible) = &self.visible else {
            return self.local_rank == gpu;
        };
        let visible: Vec<&str> = visible.split(',').map(str::trim).collect();
        let own = match visible.as_slice() {
            // Launchers that give each process its own device show it no other.
            [only] => Some(only),
            several => several.get(self.local_rank as usize),
        };
        // CUDA takes a number or the beginning of a UUID, "GPU-" alone would be all of them.
        own.is_some_and(|own| own.parse() == Ok(gpu) || own.len() > 4 && uuid.starts_with(own))
    }
}

/// A variable of the environment a process was started in.
fn variable(pid: u32, name: &str) -> Option<String> {
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    environment.split(|byte| *byte == 0).find_map(|entry| {
        let entry = String::from_utf8_lossy(entry);
        let (found, value) = entry.split_once('=')?;
        (found == name).then(|| value.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::thread;
    use std::time::Duration;

    use model::Gauge;

    use super::gpus::tests::{fake_bus, fake_nvml};
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn rank(rank: u32) -> RankState {
        RankState {
            rank,
            local_rank: rank - 4,
            spans_hosts: true,
            pid: 1 << 30 | rank,
            step: Some(7),
            alive: true,
            closed: false,
            ring: PathBuf::new(),
        }
    }

    #[test]
    fn a_host_tells_of_each_device_with_the_ranks_that_use_it() {
        let folder = tempfile::tempdir().unwrap();
        let system = folder.path();
        fake_bus(system);
        let card = system.join("class/net/eth0");
        fs::create_dir_all(card.join("statistics")).unwrap();
        fs::create_dir_all(card.join("device")).unwrap();
        let write = |name: &str, text: &str| fs::write(card.join(name), text).unwrap();
        write("carrier", "1\n");
        write("speed", "1000\n");
        write("statistics/rx_bytes", "0\n");
        write("statistics/tx_bytes", "0\n");
        write("statistics/rx_errors", "5\n");
        let library = fake_nvml(system, &["-DNO_GPM"]);
        let mut devices = HostDevices::new(system, library.as_os_str());
        let mut ranks = [rank(4), rank(5)];
        devices.look(0, false, &ranks);
        devices.tell(&mut |_| {});
        write("statistics/rx_bytes", "62500000\n");
        write("statistics/rx_errors", "8\n");
        ranks[0].step = Some(9);
        // Until both GPUs were looked at twice.
        let mut at_ns = 0;
        while devices
            .samples
            .values()
            .filter(|samples| samples.len() >= 3)
            .count()
            < 4
        {
            thread::sleep(Duration::from_millis(20));
            at_ns += SECOND;
            devices.look(at_ns, true, &ranks);
        }
        let mut reported = Vec::new();
        devices.tell(&mut |input| reported.push(input));
        let of = |at: usize| match &reported[at] {
            Input::Device {
                ranks,
                first_step: 7,
                last_step: 9,
                usage,
            } => (ranks.clone(), usage),
            other => panic!("{other:?}"),
        };
        let ((first, _), (second, hot), (all, card)) = (of(0), of(1), of(2));
        assert_eq!((first, second, all), (vec![4], vec![5], vec![4, 5]));
        assert_eq!(hot.gauge(Gauge::HeatShare), Some(1.0));
        assert_eq!(card.errors, [("rx_errors".to_owned(), 3)].into());
        assert!(card.gauge(Gauge::ReceivedBytesPerS).unwrap() > 0.0);
        // The job starts over.
        for rank in &mut ranks {
            rank.step = Some(2);
        }
        devices.look(at_ns + SECOND, false, &ranks);
        devices.tell(&mut |input| reported.push(input));
        assert!(matches!(
            reported.last(),
            Some(Input::Device {
                first_step: 2,
                last_step: 2,
                ..
            })
        ));
        let resources = |rank, from| {
            let used = devices.since(rank, from).filter(|c| !c.samples.is_empty());
            used.map(|c| c.resource).collect::<Vec<_>>()
        };
        assert_eq!(
            resources(5, 0),
            [Resource::Network, Resource::Sm, Resource::Dram]
        );
        assert_eq!(resources(6, 0), [Resource::Network], "a rank without a GPU");
    }

    #[test]
    fn a_rank_computes_where_the_driver_says_or_where_it_was_put() {
        let seat = |visible: Option<&str>| Seat {
            rank: 5,
            local_rank: 1,
            visible: visible.map(str::to_owned),
        };
        let gpus = |seat: &Seat| {
            let uuids = ["GPU-a111", "GPU-b222", "GPU-c333"];
            let at = (0..)
                .zip(uuids)
                .filter(|(gpu, uuid)| seat.is_at(*gpu, uuid));
            at.map(|(gpu, _)| gpu).collect::<Vec<u32>>()
        };
        assert_eq!(gpus(&seat(None)), [1]);
        assert_eq!(gpus(&seat(Some("2, 0"))), [0]);
        assert_eq!(gpus(&seat(Some("2"))), [2]);
        assert_eq!(gpus(&seat(Some("GPU-a111,GPU-c333"))), [2]);
        assert_eq!(gpus(&seat(Some(""))), [0; 0]);
        let mut ranks = HostRanks {
            all: vec![5],
            ..HostRanks::default()
        };
        ranks.seats.insert(77, seat(None));
        ranks.seat(0, "GPU-a111", &[77]);
        ranks.seat(1, "GPU-b222", &[]);
        assert_eq!(ranks.of_gpu(0), [5], "the driver knows better");
        assert_eq!(ranks.of_gpu(1), [0; 0]);
    }
}
