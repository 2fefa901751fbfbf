//! What a host sees of its network.

use model::{NetworkFault, QueuePairName};

use crate::fact::Worded;
use crate::words::duration;

/// Words what does not get on in the network of a rank; `peer` is the rank of the job that a flow
/// goes to, if that is known.
pub(crate) fn fault(rank: u32, fault: &NetworkFault, peer: Option<u32>) -> Worded {
    let (label, what, values) = match fault {
        NetworkFault::Requests {
            pair,
            in_flight,
            still_ns,
            failed,
            status,
        } => {
            let still_s = *still_ns as f64 * 1e-9;
            let requests = if *in_flight == 1 {
                "request"
            } else {
                "requests"
            };
            let mut text = format!(
                "{in_flight} work {requests} to {} did not complete for {}",
                named(pair),
                duration(still_s)
            );
            if *failed > 0 {
                text += &format!("; {failed} failed, the last one with status {status}");
            }
            let values = vec![("in_flight", *in_flight as f64), ("still_s", still_s)];
            ("requests_stalled", text, values)
        }
        NetworkFault::Idle { pairs } => {
            let text = format!("nothing is in flight on its {pairs} queue pairs");
            ("requests_idle", text, vec![("queue_pairs", *pairs as f64)])
        }
        NetworkFault::Slower {
            pair,
            bytes_per_s,
            usual_bytes_per_s,
        } => {
            let (now, usual) = (*bytes_per_s as f64, *usual_bytes_per_s as f64);
            let text = format!(
                "bandwidth to {} fell from {:.2} to {:.2} GB/s",
                named(pair),
                usual * 1e-9,
                now * 1e-9
            );
            let values = vec![("bytes_per_s", now), ("usual_bytes_per_s", usual)];
            ("bandwidth_lost", text, values)
        }
        NetworkFault::SlowerLink {
            peer,
            bytes_per_s,
            usual_bytes_per_s,
        } => {
            let (now, usual) = (*bytes_per_s as f64, *usual_bytes_per_s as f64);
            let text = format!(
                "its data to {peer} arrives at {:.1} MB/s instead of {:.1}",
                now * 1e-6,
                usual * 1e-6
            );
            let values = vec![("bytes_per_s", now), ("usual_bytes_per_s", usual)];
            ("link_slower", text, values)
        }
        NetworkFault::SlowerFlow {
            channel,
            peer: member,
            bytes_per_s,
            usual_bytes_per_s,
            ..
        } => {
            let (now, usual) = (*bytes_per_s as f64, *usual_bytes_per_s as f64);
            let to = peer.map_or_else(
                || format!("member {member} of its group"),
                |peer| format!("rank {peer}"),
            );
            let text = format!(
                "its data to {to} on channel {channel} takes longer in the network: {:.2} GB/s \
                 instead of {:.2}",
                now * 1e-9,
                usual * 1e-9
            );
            let values = vec![("bytes_per_s", now), ("usual_bytes_per_s", usual)];
            ("flow_slower", text, values)
        }
        NetworkFault::Socket {
            peer,
            bytes,
            resent,
            refused,
        } => {
            let what = if *refused {
                // The peer's window is closed: its host acknowledges and has no room for more.
                "are not read by the peer".to_owned()
            } else {
                let plural = if *resent == 1 { "" } else { "s" };
                format!("are not acknowledged after {resent} retransmission{plural}")
            };
            let text = format!("{bytes} bytes to {peer} {what}");
            let values = vec![("bytes", *bytes as f64), ("resent", f64::from(*resent))];
            (
                if *refused {
                    "socket_full"
                } else {
                    "socket_unacknowledged"
                },
                text,
                values,
            )
        }
        NetworkFault::Port {
            device,
            port,
            state,
            errors,
        } => {
            let grown = errors
                .iter()
                .map(|(name, count)| format!("{name} +{count}"));
            let grown: Vec<String> = grown.collect();
            let mut text = format!("port {port} of {device} is {state}");
            if !grown.is_empty() {
                text += &format!(" and has counted errors: {}", grown.join(", "));
            }
            let values = errors
                .iter()
                .map(|(name, count)| (name.as_str(), *count as f64));
            ("port", text, values.collect())
        }
    };
    let text = match fault {
        // Ports and links are of a host and all its ranks, the others of one process.
        NetworkFault::Port { .. } | NetworkFault::SlowerLink { .. } => {
            format!("host of rank {rank}: {what}")
        }
        _ => format!("rank {rank}: {what}"),
    };
    Worded::new(label, text, &values)
}

fn named(pair: &QueuePairName) -> String {
    let QueuePairName {
        device,
        port,
        number,
        peer,
    } = pair;
    format!("{peer} ({device} port {port}, queue pair {number})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_of_a_network_are_worded() {
        let pair = || QueuePairName {
            device: "mlx5_0".into(),
            port: 1,
            number: 77,
            peer: "fe80::1".into(),
        };
        let text = |found| fault(1, &found, Some(5)).text;
        let requests = NetworkFault::Requests {
            pair: pair(),
            in_flight: 12,
            still_ns: 3_100_000_000,
            failed: 1,
            status: 12,
        };
        assert_eq!(
            text(requests),
            "rank 1: 12 work requests to fe80::1 (mlx5_0 port 1, queue pair 77) did not complete \
             for 3.10 s; 1 failed, the last one with status 12"
        );
        let idle = text(NetworkFault::Idle { pairs: 8 });
        assert_eq!(idle, "rank 1: nothing is in flight on its 8 queue pairs");
        let (bytes_per_s, usual_bytes_per_s) = (12_000_000_000, 24_100_000_000);
        let slower = NetworkFault::Slower {
            pair: pair(),
            bytes_per_s,
            usual_bytes_per_s,
        };
        assert_eq!(
            text(slower),
            "rank 1: bandwidth to fe80::1 (mlx5_0 port 1, queue pair 77) fell \
             from 24.10 to 12.00 GB/s"
        );
        let socket = |refused| NetworkFault::Socket {
            peer: "10.0.0.2:29500".into(),
            bytes: 2_097_152,
            resent: 4,
            refused,
        };
        assert_eq!(
            text(socket(false)),
            "rank 1: 2097152 bytes to 10.0.0.2:29500 are not acknowledged \
             after 4 retransmissions"
        );
        assert_eq!(
            text(socket(true)),
            "rank 1: 2097152 bytes to 10.0.0.2:29500 are not read by the peer"
        );
        let link = NetworkFault::SlowerLink {
            peer: "10.0.0.2".into(),
            bytes_per_s: 24_000_000,
            usual_bytes_per_s: 610_000_000,
        };
        assert_eq!(
            text(link),
            "host of rank 1: its data to 10.0.0.2 arrives at 24.0 MB/s instead of 610.0"
        );
        let flow = NetworkFault::SlowerFlow {
            communicator: 7,
            channel: 2,
            peer: 3,
            bytes_per_s,
            usual_bytes_per_s,
        };
        let said = |to| {
            format!(
                "rank 1: its data to {to} on channel 2 takes longer in the network: 12.00 GB/s \
                 instead of 24.10"
            )
        };
        assert_eq!(fault(1, &flow, None).text, said("member 3 of its group"));
        assert_eq!(text(flow), said("rank 5"));
        let port = NetworkFault::Port {
            device: "mlx5_0".into(),
            port: 1,
            state: "DOWN".into(),
            errors: [("link_downed".to_owned(), 1)].into(),
        };
        assert_eq!(
            text(port),
            "host of rank 1: port 1 of mlx5_0 is DOWN and has counted errors: \
             link_downed +1"
        );
    }
}
