//! NVIDIA's GPUs, as the library of their driver tells of them (NVML).
//!
//! It is asked in a thread of its own: a driver with a lost GPU may not answer for long. Where there
//! is no such library there is no thread.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use model::Gauge;
use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::Clock;
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::enums::gpm::GpmMetricId;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::gpm::{GpmSample, gpm_metrics_get};
use nvml_wrapper::struct_wrappers::gpm::GpmMetricResult;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::sys_exports::field_id;
use nvml_wrapper::{Device, Nvml};
use pattern::Resource;

use super::pcie::{PcieDevice, PcieLink};
use crate::probes::{LOOK_EVERY, wall_ns};

/// How often links and counters of errors are asked for, which change seldom.
const LINKS_EVERY: Duration = Duration::from_secs(1);
/// Looks that wait to be taken; what comes after them is lost.
const MOST_WAITING: usize = 4096;
/// Links to other GPUs that one has at most, as NVML numbers them.
const MAX_NVLINKS: u32 = 18;
/// From this share of the time on a GPU is taken to work: its clock and the speed of its lanes say
/// nothing of one that rests.
const WORKS: f64 = 0.05;
/// Counters of errors: on links to other GPUs, up to Ampere and from Hopper on.
const ERRORS: [(&str, u32); 7] = [
    (
        "nvlink_crc_flit",
        field_id::NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL,
    ),
    (
        "nvlink_crc_data",
        field_id::NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL,
    ),
    (
        "nvlink_replay",
        field_id::NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL,
    ),
    (
        "nvlink_recovery",
        field_id::NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL,
    ),
    (
        "nvlink_dl_replay",
        field_id::NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY,
    ),
    (
        "nvlink_dl_recovery",
        field_id::NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY,
    ),
    ("nvlink_dl_crc", field_id::NVML_FI_DEV_NVLINK_ERROR_DL_CRC),
];
/// What GPUs from Hopper on measure themselves, between two samples.
const METRICS: [GpmMetricId; 6] = [
    GpmMetricId::SmUtil,
    GpmMetricId::DramBwUtil,
    GpmMetricId::PcieTxPerSec,
    GpmMetricId::PcieRxPerSec,
    GpmMetricId::NvlinkTotalTxPerSec,
    GpmMetricId::NvlinkTotalRxPerSec,
];
/// These tell rates in MiB a second (nvml.h), others percent.
const MIB: f64 = (1 << 20) as f64;

/// The GPUs of a host.
#[derive(Debug)]
pub(super) struct Gpus {
    looks: Receiver<GpuLook>,
    closely: Arc<AtomicBool>,
}

/// What was seen of a GPU at one time.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct GpuLook {
    pub(super) gpu: u32,
    pub(super) uuid: String,
    /// The wall clock.
    pub(super) at_ns: u64,
    /// Seconds since the last look.
    pub(super) lasted_s: f64,
    pub(super) gauges: Vec<(Gauge, f64)>,
    /// How much of what it has was used.
    pub(super) shares: Vec<(Resource, f64)>,
    /// Errors it has counted, if they were asked for.
    pub(super) errors: Vec<(String, u64)>,
    /// The processes that compute on it, if these were.
    pub(super) pids: Option<Vec<u32>>,
}

impl Gpus {
    /// The GPUs that a library of the driver tells of, and the kernel in a folder.
    pub(super) fn watch(library: &OsStr, system: &Path) -> Self {
        let (tell, looks) = sync_channel(MOST_WAITING);
        let closely = Arc::new(AtomicBool::new(false));
        let (library, bus) = (library.to_owned(), system.join("bus/pci/devices"));
        let asked = Arc::clone(&closely);
        thread::spawn(move || look_on(&library, &bus, &asked, &tell));
        Self { looks, closely }
    }

    /// What was seen since the last call; from now on every 20 ms if `closely`.
    pub(super) fn take(&self, closely: bool) -> impl Iterator<Item = GpuLook> {
        // Relaxed: a thread that hears it one look later looks one time less closely.
        self.closely.store(closely, Ordering::Relaxed);
        self.looks.try_iter()
    }
}

/// Looks at all GPUs until nobody listens any more.
fn look_on(library: &OsString, bus: &Path, closely: &AtomicBool, tell: &SyncSender<GpuLook>) {
    // By its path, at run time: one build serves hosts with and without a driver.
    let Ok(nvml) = Nvml::builder().lib_path(library).init() else {
        return;
    };
    let mut gpus: Vec<WatchedGpu<'_>> = (0..nvml.device_count().unwrap_or(0))
        .filter_map(|gpu| WatchedGpu::new(&nvml, gpu, bus))
        .collect();
    while !gpus.is_empty() {
        for gpu in &mut gpus {
            match tell.try_send(gpu.look(Instant::now(), wall_ns())) {
                // An agent that does not come to take them must not make this wait.
                Ok(()) | Err(TrySendError::Full(_)) => {}
                Err(TrySendError::Disconnected(_)) => return,
            }
        }
        let is_close = closely.load(Ordering::Relaxed);
        thread::sleep(if is_close {
            crate::live::READ_CLOSELY_EVERY
        } else {
            LOOK_EVERY
        });
    }
}

/// A GPU, and what was known of it last.
struct WatchedGpu<'nvml> {
    nvml: &'nvml Nvml,
    device: Device<'nvml>,
    number: u32,
    uuid: String,
    pcie: PcieDevice,
    measures_itself: bool,
    sample: Option<GpmSample<'nvml>>,
    looked: Option<Instant>,
    links: Option<(Instant, Links)>,
    /// How often it was asked for its errors, and did not answer any more.
    lost: u64,
}

/// How it is linked.
#[derive(Clone, Copy, Default)]
struct Links {
    pcie: Option<PcieLink>,
    nvlinks: Option<u32>,
    /// Bytes a second that these take together, each way.
    nvlink_bytes_per_s: Option<f64>,
}

impl<'nvml> WatchedGpu<'nvml> {
    fn new(nvml: &'nvml Nvml, number: u32, bus: &Path) -> Option<Self> {
        let device = nvml.device_by_index(number).ok()?;
        let folder = device
            .pci_info()
            .map(|pci| pci.bus_id.to_lowercase())
            .ok()
            // NVML writes the domain with eight digits, the kernel with four.
            .and_then(|id| Some(bus.join(id.get(id.len().checked_sub(12)?..)?)));
        Some(Self {
            nvml,
            number,
            uuid: device.uuid().unwrap_or_default(),
            pcie: PcieDevice::at(folder.unwrap_or_default()),
            measures_itself: device.gpm_support().unwrap_or(false),
            device,
            sample: None,
            looked: None,
            links: None,
            lost: 0,
        })
    }

    fn look(&mut self, now: Instant, at_ns: u64) -> GpuLook {
        let lasted_s = self
            .looked
            .replace(now)
            .map_or(0.0, |looked| (now - looked).as_secs_f64());
        let mut look = GpuLook {
            gpu: self.number,
            at_ns,
            lasted_s,
            ..GpuLook::default()
        };
        if self
            .links
            .is_none_or(|(asked, _)| now - asked >= LINKS_EVERY)
        {
            self.links = Some((now, self.ask_links()));
            look.uuid.clone_from(&self.uuid);
            look.errors = self.errors();
            let processes = self.device.running_compute_processes().unwrap_or_default();
            look.pids = Some(processes.into_iter().map(|process| process.pid).collect());
        }
        let links = self.links.map(|(_, links)| links).unwrap_or_default();
        let used = self.utilisation();
        look.gauges.extend(
            [
                (Gauge::BusyShare, used.busy),
                (Gauge::MemoryShare, used.memory),
                (Gauge::Watts, self.watts()),
                (Gauge::PcieBytesPerS, used.pcie.map(Ways::sum)),
                (Gauge::NvlinkBytesPerS, used.nvlink.map(Ways::sum)),
                (Gauge::Nvlinks, links.nvlinks.map(f64::from)),
                (Gauge::PcieLanes, links.pcie.map(|link| link.lanes)),
                (Gauge::PcieLanesMost, links.pcie.map(|link| link.lanes_most)),
            ]
            .into_iter()
            .filter_map(|(gauge, value)| Some((gauge, value?))),
        );
        // A GPU at rest lowers both by itself, which would look as if it was held back.
        if used.busy.is_some_and(|busy| busy >= WORKS) {
            let clock_mhz = self.device.clock_info(Clock::SM).ok().map(f64::from);
            let gt_per_s = links.pcie.map(|link| link.gt_per_s);
            look.gauges
                .extend(gt_per_s.map(|value| (Gauge::PcieGtPerS, value)));
            look.gauges
                .extend(clock_mhz.map(|value| (Gauge::ClockMhz, value)));
        }
        if let Ok(reasons) = self.device.current_throttle_reasons() {
            look.gauges.extend(slowdowns(reasons));
        }
        let pcie_most = links.pcie.map(PcieLink::bytes_per_s);
        let nvlink_most = links.nvlink_bytes_per_s;
        look.shares.extend(
            [
                (Resource::Sm, used.busy),
                (Resource::Dram, used.memory),
                (Resource::Pcie, used.pcie.zip(pcie_most).map(Ways::share_of)),
                (
                    Resource::NvLink,
                    used.nvlink.zip(nvlink_most).map(Ways::share_of),
                ),
            ]
            .into_iter()
            .filter_map(|(resource, value)| Some((resource, value?))),
        );
        look
    }

    /// How much of it was used since the last look: as it measures itself, or else as its driver
    /// samples it, which knows nothing of links.
    fn utilisation(&mut self) -> Utilisation {
        let mut used = Utilisation::default();
        if let Ok(rates) = self.device.utilization_rates() {
            used.busy = Some(f64::from(rates.gpu) / 100.0);
            used.memory = Some(f64::from(rates.memory) / 100.0);
        }
        let measured = self.measure();
        // The driver's share is of the time in which any kernel ran, however small; this one knows
        // better.
        if let Some(percent) = measured.get(GpmMetricId::SmUtil) {
            used.busy = Some(percent / 100.0);
        }
        if let Some(percent) = measured.get(GpmMetricId::DramBwUtil) {
            used.memory = Some(percent / 100.0);
        }
        used.pcie = Ways::of(
            &measured,
            GpmMetricId::PcieTxPerSec,
            GpmMetricId::PcieRxPerSec,
        );
        used.nvlink = Ways::of(
            &measured,
            GpmMetricId::NvlinkTotalTxPerSec,
            GpmMetricId::NvlinkTotalRxPerSec,
        );
        used
    }

    fn watts(&self) -> Option<f64> {
        let milliwatts = self.device.power_usage().ok()?;
        Some(f64::from(milliwatts) / 1e3)
    }

    /// What it has measured of itself since the last look.
    fn measure(&mut self) -> Measured {
        if !self.measures_itself {
            return Measured::default();
        }
        let Ok(sample) = self.device.gpm_sample() else {
            return Measured::default();
        };
        // Metrics are of the time between two samples.
        let found = match &self.sample {
            Some(before) => gpm_metrics_get(self.nvml, before, &sample, &METRICS),
            None => Ok(Vec::new()),
        };
        self.sample = Some(sample);
        Measured(found.unwrap_or_default().into_iter().flatten().collect())
    }

    fn ask_links(&self) -> Links {
        // The first number that NVML refuses is beyond the links this model has.
        let states: Vec<bool> = (0..MAX_NVLINKS)
            .map_while(|link| self.device.link_wrapper_for(link).is_active().ok())
            .collect();
        let up = states.iter().filter(|is_up| **is_up).count() as u32;
        let mb_per_s = self
            .fields(&[field_id::NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON])
            .first()
            .copied()
            .flatten()
            .filter(|speed| *speed > 0);
        Links {
            pcie: self.pcie.link(),
            // Without any it is a GPU that has no NVLink; with some, of which none is up, one that
            // lost them.
            nvlinks: (!states.is_empty()).then_some(up),
            // The speed is that of one link, also while none is up: those carry no share of nothing.
            nvlink_bytes_per_s: mb_per_s
                .filter(|_| up > 0)
                .map(|it| it as f64 * 1e6 * f64::from(up)),
        }
    }

    fn errors(&mut self) -> Vec<(String, u64)> {
        let mut errors = self.pcie.errors();
        // The driver has no counter of this.
        let is_lost = matches!(self.device.utilization_rates(), Err(NvmlError::GpuLost));
        self.lost += u64::from(is_lost);
        errors.push(("gpu_lost".to_owned(), self.lost));
        let counts = self.fields(&ERRORS.map(|(_, field)| field));
        errors.extend(
            ERRORS
                .iter()
                .zip(counts)
                .filter_map(|((name, _), count)| Some(((*name).to_owned(), count?))),
        );
        errors
    }

    fn fields(&self, fields: &[u32]) -> Vec<Option<u64>> {
        let fields: Vec<FieldId> = fields.iter().copied().map(FieldId).collect();
        self.device
            .field_values_for(&fields)
            .unwrap_or_default()
            .into_iter()
            .map(|field| match field.ok()?.value.ok()? {
                SampleValue::U32(value) => Some(u64::from(value)),
                SampleValue::U64(value) => Some(value),
                SampleValue::I64(value) => u64::try_from(value).ok(),
                SampleValue::F64(_) => None,
            })
            .collect()
    }
}

/// How much of a GPU was used, from 0 to 1, and what its links carried.
#[derive(Clone, Copy, Debug, Default)]
struct Utilisation {
    busy: Option<f64>,
    memory: Option<f64>,
    pcie: Option<Ways>,
    nvlink: Option<Ways>,
}

/// Metrics that a GPU has measured itself.
#[derive(Default)]
struct Measured(Vec<GpmMetricResult>);

impl Measured {
    fn get(&self, id: GpmMetricId) -> Option<f64> {
        self.0
            .iter()
            .find(|metric| metric.metric_id == id)
            .map(|metric| metric.value)
    }
}

/// What a link carried each way, in bytes a second.
#[derive(Clone, Copy, Debug)]
struct Ways {
    sent: f64,
    received: f64,
}

impl Ways {
    fn of(measured: &Measured, sent: GpmMetricId, received: GpmMetricId) -> Option<Self> {
        let (sent, received) = (measured.get(sent)?, measured.get(received)?);
        Some(Self {
            sent: sent * MIB,
            received: received * MIB,
        })
    }

    fn sum(self) -> f64 {
        self.sent + self.received
    }

    /// How full the link is that takes `most` each way: by the busier of the two.
    fn share_of((ways, most): (Self, f64)) -> f64 {
        ways.sent.max(ways.received) / most
    }
}

/// Whether it was slowed down at this look, and by what.
fn slowdowns(reasons: ThrottleReasons) -> [(Gauge, f64); 3] {
    use ThrottleReasons as Why;
    let is_hot = reasons.intersects(Why::SW_THERMAL_SLOWDOWN | Why::HW_THERMAL_SLOWDOWN);
    let is_capped = reasons.intersects(Why::SW_POWER_CAP);
    // Hardware slows down for heat too, and then says so.
    let is_braked = !reasons.intersects(Why::HW_THERMAL_SLOWDOWN)
        && reasons.intersects(Why::HW_POWER_BRAKE_SLOWDOWN | Why::HW_SLOWDOWN);
    [
        (Gauge::HeatShare, f64::from(u8::from(is_hot))),
        (Gauge::PowerLimitShare, f64::from(u8::from(is_capped))),
        (Gauge::PowerBrakeShare, f64::from(u8::from(is_braked))),
    ]
}

#[cfg(test)]
pub(super) mod tests {
    use std::fs;
    use std::path::PathBuf;
    use std::process::Command;

    use super::*;

    /// Builds a stand-in for the driver's library.
    pub(crate) fn fake_nvml(folder: &Path, options: &[&str]) -> PathBuf {
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fake_nvml.c");
        let library = folder.join("libnvidia-ml.so.1");
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", source, "-o"])
            .arg(&library)
            .args(options)
            .status();
        assert!(built.unwrap().success());
        library
    }

    /// The second GPU's place on the bus, with a link of half its width.
    pub(crate) fn fake_bus(system: &Path) {
        let device = system.join("bus/pci/devices/0000:a1:00.0");
        fs::create_dir_all(&device).unwrap();
        for (name, text) in [
            ("current_link_width", "8\n"),
            ("max_link_width", "16\n"),
            ("current_link_speed", "32.0 GT/s PCIe\n"),
        ] {
            fs::write(device.join(name), text).unwrap();
        }
    }

    /// The first looks at both GPUs, as many as are needed to see each twice.
    fn looks(options: &[&str]) -> [[GpuLook; 2]; 2] {
        let folder = tempfile::tempdir().unwrap();
        fake_bus(folder.path());
        let library = fake_nvml(folder.path(), options);
        let gpus = Gpus::watch(library.as_os_str(), folder.path());
        std::array::from_fn(|_| {
            std::array::from_fn(|_| gpus.looks.recv_timeout(Duration::from_mins(1)).unwrap())
        })
    }

    #[test]
    fn a_gpu_tells_what_it_does_and_what_slows_it_down() {
        let [[first, hot], [_, again]] = looks(&["-DNO_GPM"]);
        assert_eq!(
            (first.gpu, first.uuid.as_str(), first.pids),
            (0, "GPU-a111", Some(vec![]))
        );
        let [busy, memory] = [(Gauge::BusyShare, 0.5), (Gauge::MemoryShare, 0.2)];
        let slowed = |heat, limit| {
            [
                (Gauge::HeatShare, heat),
                (Gauge::PowerLimitShare, limit),
                (Gauge::PowerBrakeShare, 0.0),
            ]
        };
        let mut reported = vec![
            busy,
            memory,
            (Gauge::Watts, 152.0),
            (Gauge::Nvlinks, 6.0),
            (Gauge::ClockMhz, 1980.0),
        ];
        reported.extend(slowed(0.0, 1.0));
        assert_eq!(first.gauges, reported);
        let mut reported = vec![
            (Gauge::BusyShare, 0.97),
            memory,
            (Gauge::Watts, 71.5),
            (Gauge::Nvlinks, 4.0),
            (Gauge::PcieLanes, 8.0),
            (Gauge::PcieLanesMost, 16.0),
            (Gauge::PcieGtPerS, 32.0),
            (Gauge::ClockMhz, 1005.0),
        ];
        reported.extend(slowed(1.0, 0.0));
        assert_eq!(hot.gauges, reported);
        assert_eq!(
            hot.errors,
            [("gpu_lost".to_owned(), 0), ("nvlink_replay".to_owned(), 41)]
        );
        assert_eq!(again.errors, [], "links are asked for once a second");
        assert!(again.lasted_s > 0.0 && again.at_ns > hot.at_ns);
    }

    #[test]
    fn a_gpu_that_measures_itself_is_believed() {
        let [[_, before], [_, hot]] = looks(&[]);
        assert!(
            before.gauges.contains(&(Gauge::BusyShare, 0.97)),
            "nothing to compare with yet"
        );
        let is_reported = |reported| hot.gauges.contains(&reported);
        assert!(is_reported((Gauge::BusyShare, 0.625)) && is_reported((Gauge::MemoryShare, 0.25)));
        assert!(is_reported((Gauge::PcieBytesPerS, 5000.0 * MIB)), "{hot:?}");
        assert!(is_reported((Gauge::NvlinkBytesPerS, 90_000.0 * MIB)));
        let shares = [
            (Resource::Sm, 0.625),
            (Resource::Dram, 0.25),
            // 8 lanes of 32 GT/s, and four links of 25 GB/s.
            (Resource::Pcie, 4000.0 * MIB / 32e9),
            (Resource::NvLink, 50_000.0 * MIB / 100e9),
        ];
        assert_eq!(hot.shares, shares);
    }

    #[test]
    fn a_gpu_that_does_not_answer_any_more_is_counted() {
        let folder = tempfile::tempdir().unwrap();
        fake_bus(folder.path());
        let library = fake_nvml(folder.path(), &["-DLOST", "-DNO_GPM"]);
        let gpus = Gpus::watch(library.as_os_str(), folder.path());
        let mut looks = gpus.looks.iter().filter(|look| look.gpu == 1);
        let first = looks.next().unwrap();
        assert!(first.errors.contains(&("gpu_lost".to_owned(), 0)));
        let is_lost = |look: &GpuLook| look.errors.contains(&("gpu_lost".to_owned(), 1));
        let lost = looks.find(is_lost).unwrap();
        let is_busy = |(gauge, _): &(Gauge, f64)| *gauge == Gauge::BusyShare;
        assert!(!lost.gauges.iter().any(is_busy), "{lost:?}");
    }

    #[test]
    fn links_that_are_all_down_are_not_used_in_part() {
        let [_, [_, look]] = looks(&["-DLINKS_DOWN"]);
        assert!(look.gauges.contains(&(Gauge::Nvlinks, 0.0)), "{look:?}");
        let is_nvlink = |(resource, _): &(Resource, f64)| *resource == Resource::NvLink;
        assert!(!look.shares.iter().any(is_nvlink), "{look:?}");
    }

    #[test]
    fn without_the_library_nobody_looks() {
        let gpus = Gpus::watch(OsStr::new("libnone.so"), Path::new("/none"));
        assert!(
            gpus.looks.recv_timeout(Duration::from_mins(1)).is_err(),
            "the thread is gone"
        );
    }
}
