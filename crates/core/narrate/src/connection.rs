//! Connections that were slow, as telemetry of work requests tells.

use model::{ConnectionClaim, LinkFault, LostIterations, SlowConnection};

use crate::fact::Worded;
use crate::words::{duration, who};

pub(crate) fn headline(claim: &ConnectionClaim) -> String {
    let connection = &claim.connection;
    let mut text = format!(
        "the connection {} (port {}) {}, for {}; network, not compute",
        place(claim),
        connection.ends.port,
        what(connection.fault),
        duration(connection.lasted_s())
    );
    if let Some(LostIterations {
        first,
        last,
        lost_s,
    }) = claim.lost
    {
        text += &format!("; iterations {first}-{last} lost {}", duration(lost_s));
    }
    text += if connection.open {
        "; ongoing"
    } else {
        "; recovered since"
    };
    text
}

/// The connection by its ends and the port it leaves by.
pub(crate) fn flow(claim: &ConnectionClaim) -> String {
    format!("{}, port {}", place(claim), claim.connection.ends.port)
}

fn place(claim: &ConnectionClaim) -> String {
    let ends = &claim.connection.ends;
    match claim.ranks {
        Some([from, to]) => format!("from rank {from} to {to}"),
        // Telemetry names the ends by their ranks inside the communicator.
        None => format!(
            "from rank {} to {} of communicator {}",
            ends.from, ends.to, ends.communicator
        ),
    }
}

fn what(fault: LinkFault) -> String {
    match fault {
        LinkFault::Slower {
            bytes_per_s,
            usual_bytes_per_s,
        } => format!(
            "lost bandwidth: {:.2} instead of {:.2} GB/s",
            bytes_per_s * 1e-9,
            usual_bytes_per_s * 1e-9
        ),
        LinkFault::Stalled { in_flight } => format!(
            "stalled with {in_flight} {} in flight",
            if in_flight == 1 {
                "request"
            } else {
                "requests"
            }
        ),
    }
}

pub(crate) fn fact(connection: &SlowConnection) -> Worded {
    let (begin_ns, end_ns) = connection.span_ns;
    // An f64 holds nanoseconds since 1970 to 256 ns: enough for three decimals of a second.
    let [first_s, last_s] = [begin_ns, end_ns].map(|ns| ns as f64 * 1e-9);
    let text = format!(
        "{}, from {first_s:.3} to {last_s:.3} (seconds since 1970)",
        what(connection.fault)
    );
    let mut values = vec![("onset_unix_s", first_s), ("end_unix_s", last_s)];
    let label = match connection.fault {
        LinkFault::Slower {
            bytes_per_s,
            usual_bytes_per_s,
        } => {
            values.push(("bytes_per_s", bytes_per_s));
            values.push(("usual_bytes_per_s", usual_bytes_per_s));
            "bandwidth_lost"
        }
        LinkFault::Stalled { in_flight } => {
            values.push(("in_flight", in_flight as f64));
            "requests_stalled"
        }
    };
    Worded::new(label, text, &values)
}

/// The rule of probes, with the job's own requests.
pub(crate) fn path(is_broken: bool) -> Worded {
    let (label, text) = if is_broken {
        (
            "path_broken",
            "the number of requests in flight did not fall again: sent requests do not complete",
        )
    } else {
        (
            "path_works",
            "the number of requests in flight fell again: the path works, but it is slow",
        )
    };
    Worded::new(label, text.to_owned(), &[])
}

// It may be the network: the first 49 requests of an operation are not recorded.
pub(crate) fn idle_ports(ports: usize) -> Worded {
    let text = format!(
        "nothing was in flight on the {ports} recorded ports when their last requests completed: \
         nothing points to the network"
    );
    Worded::new("requests_idle", text, &[("ports", ports as f64)])
}

pub(crate) fn advice(port: &str, ranks: &[u32]) -> String {
    if ranks.is_empty() {
        format!("look at port {port} and the path from it: card, cable, switch")
    } else {
        format!("look at port {port} and the path between {}", who(ranks))
    }
}

#[cfg(test)]
mod tests {
    use model::ConnectionEnds;

    use super::*;

    #[test]
    fn a_connection_is_named_by_its_ranks_where_they_are_known() {
        let port = "host mlx5_0".to_owned();
        let stalled = SlowConnection {
            ends: ConnectionEnds {
                communicator: 7,
                from: 1,
                to: 2,
                port,
            },
            span_ns: (1_000_000_000, 3_000_000_000),
            open: true,
            fault: LinkFault::Stalled { in_flight: 1 },
        };
        let lost = LostIterations {
            first: 4,
            last: 5,
            lost_s: 1.5,
        };
        let claim = ConnectionClaim {
            connection: stalled.clone(),
            ranks: Some([8, 9]),
            lost: Some(lost),
        };
        assert_eq!(
            headline(&claim),
            "the connection from rank 8 to 9 (port host mlx5_0) stalled with 1 request in flight, \
             for 2.00 s; network, not compute; iterations 4-5 lost 1.50 s; ongoing"
        );
        let unknown = ConnectionClaim {
            ranks: None,
            lost: None,
            ..claim
        };
        assert_eq!(
            flow(&unknown),
            "from rank 1 to 2 of communicator 7, port host mlx5_0"
        );
        assert_eq!(
            fact(&stalled).text,
            "stalled with 1 request in flight, from 1.000 to 3.000 (seconds since 1970)"
        );
    }
}
