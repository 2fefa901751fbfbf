//! What NCCL itself warns of: `host:pid:tid [GPU] file:line NCCL WARN …`. It names hosts, not ranks.
//!
//! # Source
//! `net_ib.cc`, `socket.cc` and `checks.h` of NCCL 2.7 to 2.29.

use std::collections::{BTreeMap, BTreeSet};

use model::NcclNote;

use super::MAX_NOTED;
use super::said::number;

/// `IBV_WC_WR_FLUSH_ERR`: a connection had broken before.
const FLUSHED: u32 = 5;

/// Before the other end of a request.
const COMPLETION: &str = "Got completion from peer ";

/// A warning that tells of a fault.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Warning {
    /// A request over RDMA failed.
    Request {
        /// Unknown where PyTorch quotes the warning.
        host: Option<String>,
        /// Address of the other end, as NCCL's sockets have it.
        peer: String,
        /// `ibv_wc_status`.
        status: u32,
    },
    /// The link of a port went down, or came back.
    Link { port: Port, is_up: bool },
    /// A process could not connect to another.
    NotConnected {
        host: String,
        /// Address of the other end.
        peer: String,
    },
    /// A call of the driver failed.
    Device {
        host: String,
        /// Its number in the process.
        device: u32,
        error: String,
    },
}

/// A port of a network card, `mlx5_0:1`, which NCCL names since 2.19.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Port {
    host: String,
    name: Option<String>,
}

/// What the warnings of a log come to.
#[derive(Clone, Debug, Default)]
pub(super) struct Warnings {
    /// Hosts by whom they had a failed request to, and how it failed.
    requests: BTreeMap<(String, u32), BTreeSet<String>>,
    /// Whether the link came back.
    links: BTreeMap<Port, bool>,
    devices: BTreeMap<(String, u32), String>,
    /// Hosts by whom they could not connect to.
    unconnected: BTreeMap<String, BTreeSet<String>>,
}

impl Warnings {
    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
            && self.links.is_empty()
            && self.devices.is_empty()
            && self.unconnected.is_empty()
    }

    pub(super) fn take(&mut self, warning: Warning) {
        match warning {
            Warning::Request { host, peer, status } => {
                if let Some(hosts) = room(&mut self.requests, (peer, status)) {
                    hosts.extend(host);
                }
            }
            Warning::NotConnected { host, peer } => {
                if let Some(hosts) = room(&mut self.unconnected, peer) {
                    hosts.insert(host);
                }
            }
            // Of a link that has not failed nothing is said.
            Warning::Link { port, is_up: true } => {
                self.links
                    .entry(port)
                    .and_modify(|came_back| *came_back = true);
            }
            Warning::Link { port, is_up: false } => {
                if let Some(came_back) = room(&mut self.links, port) {
                    *came_back = false;
                }
            }
            Warning::Device {
                host,
                device,
                error,
            } => {
                // What a device reports later follows from its first error.
                if let Some(known) = room(&mut self.devices, (host, device))
                    && known.is_empty()
                {
                    *known = error;
                }
            }
        }
    }

    pub(super) fn extend(&mut self, other: &Self) {
        for (of, hosts) in &other.requests {
            self.requests
                .entry(of.clone())
                .or_default()
                .extend(hosts.clone());
        }
        for (peer, hosts) in &other.unconnected {
            let known = self.unconnected.entry(peer.clone()).or_default();
            known.extend(hosts.clone());
        }
        self.links.extend(other.links.clone());
        self.devices.extend(other.devices.clone());
    }

    pub(super) fn notes(&self) -> Vec<NcclNote> {
        let links = self
            .links
            .iter()
            .map(|(port, came_back)| NcclNote::LinkDown {
                host: port.host.clone(),
                port: port.name.clone(),
                came_back: *came_back,
            });
        let devices = self.devices.iter().map(|((host, device), error)| {
            let (host, device, error) = (host.clone(), *device, error.clone());
            NcclNote::Device {
                host,
                device,
                error,
            }
        });
        let mut requests: Vec<_> = self.requests.iter().collect();
        // Of whom most hosts got no answer is the likeliest to have failed.
        requests.sort_by_key(|(_, hosts)| std::cmp::Reverse(hosts.len()));
        let requests =
            requests
                .into_iter()
                .map(|((peer, status), hosts)| NcclNote::FailedRequest {
                    peer: peer.clone(),
                    status: *status,
                    hosts: hosts.iter().cloned().collect(),
                });
        let mut notes: Vec<NcclNote> = links.take(MAX_NOTED).collect();
        notes.extend(devices.take(MAX_NOTED));
        notes.extend(requests.take(MAX_NOTED));
        let unconnected = self.unconnected.iter().map(|(peer, hosts)| {
            let (peer, hosts) = (peer.clone(), hosts.iter().cloned().collect());
            NcclNote::NotConnected { peer, hosts }
        });
        notes.extend(unconnected.take(MAX_NOTED));
        notes
    }
}

/// The entry of a key. A cluster has some thousand hosts; more keys are of a damaged log.
fn room<K: Ord, V: Default>(of: &mut BTreeMap<K, V>, key: K) -> Option<&mut V> {
    const MAX_KEYS: usize = 1 << 14;
    let is_full = of.len() >= MAX_KEYS && !of.contains_key(&key);
    (!is_full).then(|| of.entry(key).or_default())
}

/// What a record warns of, by what stands before and after `NCCL WARN `; `None` of what follows from
/// something else, or tells of no fault.
pub(super) fn warning(before: &str, said: &str) -> Option<Warning> {
    let (host, device) = process(before)?;
    if said.contains(COMPLETION) {
        return failed_request(said, Some(host));
    }
    if said.contains("async event") {
        let is_up = said.contains("port active");
        if !is_up && !said.contains("port error") {
            return None;
        }
        let (_, named) = said.split_once("NET/IB")?;
        let name = named.trim_start_matches([' ', ':']).split(' ').next()?;
        let name = name.contains(':').then(|| name.to_owned());
        let port = Port { host, name };
        return Some(Warning::Link { port, is_up });
    }
    if let Some((_, call)) = said.split_once("Connect to ") {
        let peer = address(call).filter(|_| call.contains(" failed"))?;
        return Some(Warning::NotConnected { host, peer });
    }
    let failure = ["Cuda failure", "HIP failure"];
    let failed = failure.iter().find_map(|it| said.strip_prefix(it))?;
    let error = failed.split('\'').nth(1)?.to_owned();
    Some(Warning::Device {
        host,
        device,
        error,
    })
}

/// A request over RDMA that failed, and whose host's it was.
pub(super) fn failed_request(said: &str, host: Option<String>) -> Option<Warning> {
    let (_, completion) = said.split_once(COMPLETION)?;
    let status = status(completion)?;
    (status != FLUSHED).then_some(Warning::Request {
        host,
        peer: address(completion)?,
        status,
    })
}

/// The other end of a connection that has gone.
pub(super) fn lost_peer(said: &str) -> Option<String> {
    if let Some((_, peer)) = said.split_once("Connection closed by remote peer ") {
        return address(peer);
    }
    let (_, call) = said
        .split_once("Call to recv from ")
        .or_else(|| said.split_once("Call to send to "))?;
    let (peer, why) = call.split_once(" failed")?;
    let is_gone = ["Connection reset by peer", "Broken pipe"]
        .iter()
        .any(|it| why.contains(it));
    address(peer).filter(|_| is_gone)
}

/// The host and the GPU of a process: `node7:984:1357 [4]`, whatever stands before it.
fn process(before: &str) -> Option<(String, u32)> {
    let words: Vec<&str> = before.split_whitespace().collect();
    words.windows(2).find_map(|pair| {
        let device = pair[1].strip_prefix('[')?.strip_suffix(']')?.parse().ok()?;
        let mut parts = pair[0].rsplitn(3, ':');
        let _: (u32, u32) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        // A launcher's prefix may end in a colon.
        let host = parts.next()?.rsplit(':').next()?;
        (!host.is_empty()).then(|| (host.to_owned(), device))
    })
}

/// An address without its port: `10.0.0.7<37948>`.
fn address(text: &str) -> Option<String> {
    let address = text.split(['<', ' ']).next()?;
    (!address.is_empty()).then(|| address.to_owned())
}

/// `with error 12`, `status=12`, or `status=IBV_WC_RETRY_EXC_ERR(12)`.
fn status(completion: &str) -> Option<u32> {
    let after = |word| completion.split_once(word).map(|(_, rest)| rest);
    let status = after("status=").or_else(|| after("with error "))?;
    number(status).or_else(|| number(status.split_once('(')?.1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(record: &str) -> Option<Warning> {
        let (before, said) = record.split_once("NCCL WARN ")?;
        warning(before, said)
    }

    #[test]
    fn failed_requests_of_all_versions_are_read() {
        for (prefix, how) in [
            ("", "with error 12, opcode 0, len 0, vendor err 129"),
            (
                "3: ",
                "with status=12 opcode=1 len=0 vendor err 129 (Send) hca mlx5_9",
            ),
            (
                "7: [2026-01-02 03:04:05] ",
                "with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) vendor_err=129",
            ),
            (
                "2026-01-02T03:04:05.6Z: [1,3]<stdout>:",
                "with error 12, opcode 2",
            ),
        ] {
            let record = format!(
                "{prefix}node7:984:1357 [4] transport/net_ib.cc:1615 NCCL WARN NET/IB : Got completion \
                 from peer 10.0.0.9<44206> {how}"
            );
            let request = Warning::Request {
                host: Some("node7".to_owned()),
                peer: "10.0.0.9".to_owned(),
                status: 12,
            };
            assert_eq!(read(&record), Some(request), "{record}");
        }
        // What else was in flight on a connection that had failed.
        let flushed = "node7:984:1357 [4] a.cc:1 NCCL WARN NET/IB : Got completion from peer \
                       10.0.0.9<4> with status=5 opcode=0";
        assert_eq!(read(flushed), None);
    }

    #[test]
    fn connections_whose_other_end_has_gone_are_read() {
        for (said, peer) in [
            (
                "socketProgress: Connection closed by remote peer b<51159>",
                Some("b"),
            ),
            (
                "Net : Call to recv from 10.0.0.7<58355> failed : Broken pipe",
                Some("10.0.0.7"),
            ),
            (
                "socketProgressOpt: Call to send to 10.0.0.7<33759> failed : Connection reset by peer",
                Some("10.0.0.7"),
            ),
            // Nobody has been there yet.
            (
                "socketPollConnect: Call to recv from 10.0.0.7<3> failed : Connection refused",
                None,
            ),
        ] {
            assert_eq!(lost_peer(said).as_deref(), peer, "{said}");
        }
    }

    #[test]
    fn links_that_go_down_and_come_back_are_read() {
        for (event, name, is_up) in [
            ("Got async event : port error", None, false),
            (
                "mlx5_3:1 Got async event : port error",
                Some("mlx5_3:1"),
                false,
            ),
            (
                "mlx5_3:1 Got non-fatal async event: port error(10)",
                Some("mlx5_3:1"),
                false,
            ),
            (
                "mlx5_3:1 Got non-fatal async event: port active(9)",
                Some("mlx5_3:1"),
                true,
            ),
        ] {
            let record =
                format!("node7:9:13 [0] transport/net_ib.cc:93 NCCL WARN NET/IB : {event}");
            let port = Port {
                host: "node7".to_owned(),
                name: name.map(str::to_owned),
            };
            assert_eq!(
                read(&record),
                Some(Warning::Link { port, is_up }),
                "{record}"
            );
        }
        let other =
            "node7:9:13 [0] a.cc:1 NCCL WARN NET/IB : mlx5_3:1 Got async event : GID table change";
        assert_eq!(read(other), None);
    }

    #[test]
    fn connections_that_could_not_be_made_are_read() {
        let record = "node7:9:13 [5] misc/socket.cc:483 NCCL WARN socketStartConnect: Connect to \
                      fe80::1%ib1<17943> failed : Software caused connection abort";
        let (host, peer) = ("node7".to_owned(), "fe80::1%ib1".to_owned());
        assert_eq!(read(record), Some(Warning::NotConnected { host, peer }));
    }

    #[test]
    fn errors_of_devices_are_read() {
        let device = |record| match read(record) {
            Some(Warning::Device {
                host,
                device,
                error,
            }) => (host, device, error),
            other => panic!("{record}: {other:?}"),
        };
        for record in [
            "node7:9:13 [3] include/alloc.h:178 NCCL WARN Cuda failure 'out of memory'",
            "node7:9:13 [3] enqueue.cc:4 NCCL WARN Cuda failure 2 'out of memory'",
            "node7:9:13 [3] enqueue.cc:4 NCCL WARN HIP failure: 'out of memory'",
        ] {
            let expected = ("node7".to_owned(), 3, "out of memory".to_owned());
            assert_eq!(device(record), expected);
        }
    }
}
