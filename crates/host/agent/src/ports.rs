//! The ports of this host's network cards: their state, and the errors they count.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use model::NetworkFault;

/// Where the kernel shows them.
const ROOT: &str = "/sys/class/infiniband";
/// Counters, of those in `counters` and `hw_counters`, that only grow when something is wrong.
const ERRORS: [&str; 12] = [
    "symbol_error",
    "link_error_recovery",
    "link_downed",
    "local_link_integrity_errors",
    "port_rcv_errors",
    "port_xmit_discards",
    "out_of_sequence",
    "packet_seq_err",
    "local_ack_timeout_err",
    "rnr_nak_retry_err",
    "roce_adp_retrans",
    "req_transport_retries_exceeded",
];

/// The ports as they were when the job began.
#[derive(Debug)]
pub(crate) struct Ports {
    root: PathBuf,
    first: BTreeMap<(String, u32), Port>,
}

/// A port of a card, as the kernel shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Port {
    state: String,
    /// Errors it has counted, by counter.
    pub(crate) errors: BTreeMap<&'static str, u64>,
}

impl Port {
    /// Whether it carries anything.
    pub(crate) fn is_active(&self) -> bool {
        self.state == NetworkFault::ACTIVE
    }
}

impl Default for Ports {
    fn default() -> Self {
        Self::under(Path::new(ROOT))
    }
}

impl Ports {
    fn under(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
            first: ports(root),
        }
    }

    /// Ports that are not active any more, or have counted errors since.
    pub(crate) fn faults(&self) -> Vec<NetworkFault> {
        let mut faults = Vec::new();
        for ((device, port), now) in ports(&self.root) {
            let Some(first) = self.first.get(&(device.clone(), port)) else {
                continue;
            };
            // Counters count from when the driver was loaded: only what came since is the job's.
            let errors: BTreeMap<String, u64> = now
                .errors
                .iter()
                .filter_map(|(name, count)| {
                    let before = first.errors.get(name).copied().unwrap_or(0);
                    (*count > before).then(|| ((*name).to_owned(), count - before))
                })
                .collect();
            // A port that was down from the beginning carries nothing of this job.
            if now.state != first.state || !errors.is_empty() {
                faults.push(NetworkFault::Port {
                    device,
                    port,
                    state: now.state,
                    errors,
                });
            }
        }
        faults
    }
}

fn ports(root: &Path) -> BTreeMap<(String, u32), Port> {
    let mut found = BTreeMap::new();
    for (device, folder) in entries(root) {
        for (port, folder) in entries(&folder.join("ports")) {
            if let Ok(number) = port.parse() {
                found.insert((device.clone(), number), port_in(&folder));
            }
        }
    }
    found
}

/// What is in a folder, by name; nothing if it cannot be read.
pub(crate) fn entries(folder: &Path) -> impl Iterator<Item = (String, PathBuf)> {
    fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path())))
}

/// Reads a port's folder.
pub(crate) fn port_in(folder: &Path) -> Port {
    // "4: ACTIVE"
    let state = fs::read_to_string(folder.join("state")).unwrap_or_default();
    let state = state
        .rsplit(": ")
        .next()
        .unwrap_or_default()
        .trim()
        .to_owned();
    let errors = ERRORS
        .iter()
        .filter_map(|name| {
            // Which of the two has a counter differs from driver to driver.
            let text = ["counters", "hw_counters"]
                .iter()
                .find_map(|kind| fs::read_to_string(folder.join(kind).join(name)).ok())?;
            Some((*name, text.trim().parse().ok()?))
        })
        .collect();
    Port { state, errors }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_goes_down_or_counts_errors_is_reported() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        for port in ["mlx5_0/ports/1", "mlx5_0/ports/2", "mlx5_1/ports/1"] {
            write(&format!("{port}/state"), "4: ACTIVE\n");
            write(&format!("{port}/counters/symbol_error"), "7\n");
            write(&format!("{port}/hw_counters/out_of_sequence"), "0\n");
        }
        let ports = Ports::under(root.path());
        assert!(ports.faults().is_empty());
        write("mlx5_0/ports/2/state", "1: DOWN\n");
        write("mlx5_1/ports/1/hw_counters/out_of_sequence", "5\n");
        write("mlx5_1/ports/1/counters/port_xmit_data", "99\n");
        let fault = |device: &str, port, state: &str, errors: &[(&str, u64)]| {
            let errors = errors
                .iter()
                .map(|(name, count)| ((*name).to_owned(), *count));
            let (device, state) = (device.to_owned(), state.to_owned());
            NetworkFault::Port {
                device,
                port,
                state,
                errors: errors.collect(),
            }
        };
        let reported = [
            fault("mlx5_0", 2, "DOWN", &[]),
            fault("mlx5_1", 1, "ACTIVE", &[("out_of_sequence", 5)]),
        ];
        assert_eq!(ports.faults(), reported);
        assert!(Ports::under(&root.path().join("none")).faults().is_empty());
    }
}
