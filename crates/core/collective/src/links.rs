//! What connections did over a run, from windows of work requests that another tool measured.

use std::collections::BTreeMap;

use model::{ConnectionEnds, LinkFault, RankNs, SlowConnection};

use crate::arrival::MAX_FINDINGS;
use crate::requests::{Connection, STALLED_S, WINDOW};

/// What was measured as a request came back.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Returned {
    /// When, in nanoseconds since 1970.
    pub at_ns: u64,
    /// Number of the operation in the communicator. Requests are told from the 50th on of each.
    pub operation: u64,
    /// Bytes a second of the last 50 requests, at least.
    pub bytes_per_s: f64,
    /// What its rounding may have taken.
    pub rounded_bytes_per_s: f64,
    /// Requests still in flight on the port.
    pub in_flight: u64,
}

/// The connections that were slow or still, costliest first.
///
/// Each 50th request of an operation is a window of its own. A stall within an operation is seen
/// between two of its requests; after the last request of a port it is one if others went on.
///
/// # Source
/// MegaTrace (2026), alerts of its telemetry: 500 ms, 20 %; docs/math/collective.md.
pub fn slow_links(mut returned: BTreeMap<ConnectionEnds, Vec<Returned>>) -> Vec<SlowConnection> {
    for of_link in returned.values_mut() {
        of_link.sort_by_key(|it| it.at_ns);
    }
    let last_ns = returned
        .values()
        .filter_map(|of_link| Some(of_link.last()?.at_ns))
        .max()
        .unwrap_or(0);
    let mut ports: BTreeMap<&str, (u64, &ConnectionEnds)> = BTreeMap::new();
    let mut found = Vec::new();
    for (ends, of_link) in &returned {
        found.extend(slower(ends, of_link));
        found.extend(of_link.windows(2).filter_map(|pair| {
            let span_ns = (pair[0].at_ns, pair[1].at_ns);
            // Between two operations a connection may well have nothing to do.
            let same = pair[0].operation == pair[1].operation;
            stalled(ends, &pair[0], span_ns, false).filter(|_| same)
        }));
        let Some(last) = of_link.last() else { continue };
        let of_port = ports.entry(&ends.port).or_insert((last.at_ns, ends));
        *of_port = (*of_port).max((last.at_ns, ends));
    }
    for (_, ends) in ports.into_values() {
        // What is in flight is counted by port: its link that was heard of last stands for it.
        if let Some(last) = returned[ends].last() {
            found.extend(stalled(ends, last, (last.at_ns, last_ns), true));
        }
    }
    found.sort_by(|a, b| b.lost_s().total_cmp(&a.lost_s()));
    found.truncate(MAX_FINDINGS);
    found
}

/// How many ports reported, if nothing was in flight on any of them when its last request came
/// back: [`Path::Unused`](crate::Path::Unused) since. `None` if something was.
pub fn idle_ports(returned: &BTreeMap<ConnectionEnds, Vec<Returned>>) -> Option<usize> {
    let mut lasts: BTreeMap<&str, &Returned> = BTreeMap::new();
    for (ends, of_link) in returned {
        let Some(latest) = of_link.iter().max_by_key(|it| it.at_ns) else {
            continue;
        };
        let last = lasts.entry(&ends.port).or_insert(latest);
        if latest.at_ns > last.at_ns {
            *last = latest;
        }
    }
    lasts
        .values()
        .all(|last| last.in_flight == 0)
        .then_some(lasts.len())
}

fn stalled(
    ends: &ConnectionEnds,
    before: &Returned,
    span_ns: (u64, u64),
    open: bool,
) -> Option<SlowConnection> {
    let fault = LinkFault::Stalled {
        in_flight: before.in_flight,
    };
    let link = SlowConnection {
        ends: ends.clone(),
        span_ns,
        open,
        fault,
    };
    // With nothing in flight there is nothing that could come back.
    (before.in_flight > 0 && link.lasted_s() >= STALLED_S).then_some(link)
}

/// Stretches in which a connection lost bandwidth.
fn slower(ends: &ConnectionEnds, of_link: &[Returned]) -> Vec<SlowConnection> {
    let mut connection = Connection::default();
    let mut found: Vec<SlowConnection> = Vec::new();
    // Nothing can be lost before enough windows say what is usual: the 0 is no beginning.
    let (mut before_ns, mut was_lost) = (0, false);
    for window in of_link
        // Each value covers the last 50 requests: of every 50th none counts twice.
        .chunk_by(|a, b| a.operation == b.operation)
        .flat_map(|of_operation| of_operation.iter().step_by(WINDOW as usize))
    {
        connection.read_window(RankNs(window.at_ns), window.in_flight, window.bytes_per_s);
        // Whatever rounding has taken is granted: it must not look like a loss.
        let most = window.bytes_per_s + window.rounded_bytes_per_s;
        let lost = connection.lost_at(most);
        if let Some(lost) = lost {
            let (bytes_per_s, usual_bytes_per_s) = (most, lost.usual_bytes_per_s);
            match found.last_mut().filter(|_| was_lost) {
                Some(SlowConnection {
                    span_ns,
                    fault:
                        LinkFault::Slower {
                            bytes_per_s: least, ..
                        },
                    ..
                }) => {
                    span_ns.1 = window.at_ns;
                    *least = least.min(bytes_per_s);
                }
                _ => found.push(SlowConnection {
                    ends: ends.clone(),
                    span_ns: (before_ns, window.at_ns),
                    open: false,
                    fault: LinkFault::Slower {
                        bytes_per_s,
                        usual_bytes_per_s,
                    },
                }),
            }
        }
        (before_ns, was_lost) = (window.at_ns, lost.is_some());
    }
    if let Some(last) = found.last_mut() {
        last.open = was_lost;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const GB: f64 = 1e9;

    fn ends(port: &str) -> ConnectionEnds {
        ConnectionEnds {
            communicator: 7,
            from: 1,
            to: 2,
            port: port.to_owned(),
        }
    }

    /// Operations of 150 requests that are told, a millisecond each.
    fn link(operations: &[f64]) -> Vec<Returned> {
        let of_operation = |(operation, bytes_per_s): (u64, &f64)| {
            let bytes_per_s = *bytes_per_s;
            (0..150).map(move |at| Returned {
                at_ns: (operation * 200 + 50 + at) * MS,
                operation,
                bytes_per_s,
                rounded_bytes_per_s: 0.1 * GB,
                in_flight: 149 - at,
            })
        };
        (0..).zip(operations).flat_map(of_operation).collect()
    }

    fn found(links: Vec<(&str, Vec<Returned>)>) -> Vec<SlowConnection> {
        slow_links(
            links
                .into_iter()
                .map(|(port, link)| (ends(port), link))
                .collect(),
        )
    }

    #[test]
    fn a_stretch_of_lost_bandwidth_is_one_finding() {
        let mut rates = [10.0 * GB; 40];
        rates[20..25].fill(6.0 * GB);
        let [slow] = &found(vec![("a", link(&rates))])[..] else {
            panic!()
        };
        assert!(!slow.open && slow.ends == ends("a") && !slow.is_broken());
        // From the last window before, which ended 50 ms before the operation, to the last.
        assert_eq!(slow.span_ns, (3_950 * MS, 4_950 * MS));
        let LinkFault::Slower {
            bytes_per_s,
            usual_bytes_per_s,
        } = slow.fault
        else {
            panic!()
        };
        assert_eq!((bytes_per_s, usual_bytes_per_s), (6.1 * GB, 10.0 * GB));
        assert!((slow.lost_s() - 0.39).abs() < 1e-9);
    }

    #[test]
    fn less_than_a_fifth_and_what_rounding_may_take_is_no_loss() {
        for rate in [8.1, 7.95] {
            let mut rates = [10.0 * GB; 40];
            rates[20..].fill(rate * GB);
            assert_eq!(found(vec![("a", link(&rates))]), []);
        }
    }

    #[test]
    fn what_does_not_come_back_while_others_go_on_stands_still() {
        let mut cut = link(&[10.0 * GB; 10]);
        cut.retain(|it| it.at_ns < 1_700 * MS);
        let [stalled] = &found(vec![("a", link(&[10.0 * GB; 20])), ("b", cut.clone())])[..] else {
            panic!()
        };
        assert_eq!((stalled.ends.port.as_str(), stalled.open), ("b", true));
        assert!(stalled.is_broken());
        assert_eq!(stalled.fault, LinkFault::Stalled { in_flight: 100 });
        assert_eq!(stalled.span_ns, (1_699 * MS, 3_999 * MS));
        // All came back: there is nothing it could wait for.
        cut.retain(|it| it.at_ns < 1_600 * MS);
        assert_eq!(found(vec![("a", link(&[10.0 * GB; 20])), ("b", cut)]), []);
    }

    #[test]
    fn ports_are_idle_if_all_came_back_on_each() {
        let whole = link(&[10.0 * GB; 3]);
        let mut cut = whole.clone();
        cut.pop();
        let idle = |other: &[Returned]| {
            let links = [(ends("a"), whole.clone()), (ends("b"), other.to_vec())];
            idle_ports(&links.into())
        };
        assert_eq!((idle(&whole), idle(&cut)), (Some(2), None));
    }

    #[test]
    fn a_pause_is_a_stall_within_an_operation_only() {
        let pause = |from_ms: u64| {
            let mut link = link(&[10.0 * GB; 10]);
            for it in &mut link {
                it.at_ns += if it.at_ns > from_ms * MS { 600 * MS } else { 0 };
            }
            found(vec![("a", link)])
        };
        let [stalled] = &pause(700)[..] else { panic!() };
        assert_eq!(
            (stalled.span_ns, stalled.open),
            ((700 * MS, 1_301 * MS), false)
        );
        assert!(!stalled.is_broken());
        // Of what begins an operation nothing is told.
        assert_eq!(pause(820), []);
    }
}
