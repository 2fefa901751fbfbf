//! The link of a device to its host, as the kernel knows it.

use std::fs;
use std::path::{Path, PathBuf};

/// Counters of Advanced Error Reporting, and what their files are called.
const COUNTERS: [(&str, &str); 3] = [
    ("pcie_correctable", "aer_dev_correctable"),
    ("pcie_nonfatal", "aer_dev_nonfatal"),
    ("pcie_fatal", "aer_dev_fatal"),
];

/// The folder of a device on the bus.
#[derive(Clone, Debug)]
pub(super) struct PcieDevice(PathBuf);

/// How a device is linked to its host.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct PcieLink {
    pub(super) lanes: f64,
    pub(super) lanes_most: f64,
    /// Transfers a second of a lane, in GT/s.
    pub(super) gt_per_s: f64,
}

impl PcieLink {
    /// Bytes a second it takes each way: eight transfers are a byte. What codes cost (one part in
    /// 65 and less from 8 GT/s on) is left out.
    pub(super) fn bytes_per_s(self) -> f64 {
        self.lanes * self.gt_per_s * 1e9 / 8.0
    }
}

impl PcieDevice {
    pub(super) fn at(folder: PathBuf) -> Self {
        Self(folder)
    }

    /// Its link; `None` where it has none of its own, as virtual devices do.
    pub(super) fn link(&self) -> Option<PcieLink> {
        let lanes = number(&self.0.join("current_link_width"))?;
        let lanes_most = number(&self.0.join("max_link_width"))?;
        // "16.0 GT/s PCIe"
        let gt_per_s = number(&self.0.join("current_link_speed"))?;
        let is_link = lanes >= 1.0 && lanes_most >= lanes && gt_per_s > 0.0;
        // Where the kernel does not know it says 255 lanes.
        (is_link && lanes_most <= 32.0).then_some(PcieLink {
            lanes,
            lanes_most,
            gt_per_s,
        })
    }

    /// Errors it has counted since the host was started.
    pub(super) fn errors(&self) -> Vec<(String, u64)> {
        COUNTERS
            .iter()
            .filter_map(|(name, file)| {
                let text = fs::read_to_string(self.0.join(file)).ok()?;
                // The last line is the sum: "TOTAL_ERR_COR 0".
                let total = text.lines().rev().find(|line| line.starts_with("TOTAL"))?;
                Some(((*name).to_owned(), total.rsplit(' ').next()?.parse().ok()?))
            })
            .collect()
    }
}

/// The number a file begins with.
pub(super) fn number(path: &Path) -> Option<f64> {
    fs::read_to_string(path)
        .ok()?
        .split_whitespace()
        .next()?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_read_with_its_errors_and_one_that_is_not_known_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        let device = PcieDevice::at(folder.path().to_owned());
        assert_eq!((device.link(), device.errors()), (None, Vec::new()));
        write("current_link_width", "8\n");
        write("max_link_width", "16\n");
        write("current_link_speed", "16.0 GT/s PCIe\n");
        write(
            "aer_dev_correctable",
            "RxErr 3\nBadTLP 2\nTOTAL_ERR_COR 5\n",
        );
        let link = device.link().unwrap();
        assert_eq!(
            link,
            PcieLink {
                lanes: 8.0,
                lanes_most: 16.0,
                gt_per_s: 16.0
            }
        );
        assert_eq!(link.bytes_per_s(), 16e9);
        assert_eq!(device.errors(), [("pcie_correctable".to_owned(), 5)]);
        write("current_link_width", "0\n");
        write("current_link_speed", "Unknown\n");
        assert_eq!(device.link(), None);
    }
}
