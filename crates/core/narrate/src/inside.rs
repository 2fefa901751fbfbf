//! What stands still inside an operation that all ranks have begun.

use std::collections::BTreeMap;

use model::{Failure, HoldUp};

use crate::fact::Worded;
use crate::stall::{collective, label};
use crate::words::{self, duration, who};

/// What is wrong, as a sentence without its beginning.
pub(crate) fn what(failure: &Failure) -> String {
    let (who, place) = (who(&failure.ranks), place(failure));
    let of = |one, several| words::of(&failure.ranks, one, several);
    let (does, gpu) = (of("does", "do"), of("the GPU of", "the GPUs of"));
    let text = match failure.cause {
        // One rank is at an end of all links that stand still.
        HoldUp::NotDelivered if failure.ranks.len() == 1 => {
            format!("data to and from {who} in {place} does not arrive")
        }
        HoldUp::NotDelivered => {
            format!("data between {who} in {place} does not arrive")
        }
        HoldUp::NotTransmitted => {
            format!("{who} {does} not hand ready data to the network in {place}")
        }
        HoldUp::ReceiverNotReady => {
            let takes = of("takes", "take");
            format!("{who} {takes} no more data from the network in {place}")
        }
        HoldUp::GpuNotStarted => format!("{gpu} {who} never began {place}"),
        HoldUp::GpuNotReady => format!("{gpu} {who} stopped sending in {place}"),
        HoldUp::GpuNotTaking => {
            format!("{gpu} {who} {does} not take what arrived in {place}")
        }
        HoldUp::ProxyStill => {
            let (threads, makes) = (of("thread", "threads"), of("makes", "make"));
            format!("NCCL's proxy {threads} of {who} {makes} no progress in {place}")
        }
        HoldUp::NotEntered => format!("{who} never entered {place}"),
        HoldUp::DeadlockCycle => format!("{who} wait for one another in {place}"),
        HoldUp::Unknown => format!("all ranks began {place}, and it does not end"),
    };
    match flows(failure) {
        Some(flows) => format!("{text} ({flows})"),
        None => text,
    }
}

fn place(failure: &Failure) -> String {
    failure
        .waits
        .iter()
        .map(collective)
        .collect::<Vec<_>>()
        .join(" and ")
}

/// The flows it shows in, if not all of the ranks' flows are struck.
pub(crate) fn flows(failure: &Failure) -> Option<String> {
    // NCCL spreads an operation over many channels: by pair of ranks they fold to one range.
    let mut of_pairs: BTreeMap<(u32, u32), Vec<u32>> = BTreeMap::new();
    for link in &failure.links {
        of_pairs
            .entry((link.from, link.to))
            .or_default()
            .push(link.channel.into());
    }
    let texts: Vec<String> = of_pairs
        .into_iter()
        .map(|((from, to), channels)| {
            format!("rank {from} to {to}, {}", words::channels(&channels))
        })
        .collect();
    (!texts.is_empty()).then(|| texts.join("; "))
}

/// What was seen.
pub(crate) fn fact(failure: &Failure) -> Worded {
    let still = duration(failure.still_s);
    let mut text = format!("no counter of {} moved for {still}", place(failure));
    let mut values = vec![("still_s", failure.still_s)];
    if failure.in_flight > 0 {
        let came = if failure.in_flight == 1 {
            "transfer is"
        } else {
            "transfers are"
        };
        text += &format!("; {} {came} in flight", failure.in_flight);
        values.push(("in_flight", failure.in_flight as f64));
    }
    Worded::new(label(failure.cause), text, &values)
}

#[cfg(test)]
mod tests {
    use model::{CollectiveOp, RankChannel, Wait};

    use super::*;

    #[test]
    fn what_is_not_delivered_is_said_with_its_flows() {
        let wait = Wait {
            group: "dp".to_owned(),
            number: 3,
            op: CollectiveOp::ALLREDUCE,
            ..Wait::default()
        };
        let channel = |channel| RankChannel {
            from: 2,
            to: 3,
            channel,
        };
        let failure = Failure {
            cause: HoldUp::NotDelivered,
            ranks: vec![2, 3],
            links: vec![channel(0), channel(1)],
            waits: vec![wait],
            still_s: 2.0,
            in_flight: 1,
        };
        assert_eq!(
            what(&failure),
            "data between ranks 2-3 in ALLREDUCE #3 of group dp does not arrive (rank 2 to 3, \
             channels 0-1)"
        );
        let of_gpus = Failure {
            cause: HoldUp::GpuNotTaking,
            ..failure.clone()
        };
        assert!(what(&of_gpus).starts_with("the GPUs of ranks 2-3 do not take what arrived in"));
        let Worded { label, text, .. } = fact(&failure);
        assert_eq!(label, "not_delivered");
        assert_eq!(
            text,
            "no counter of ALLREDUCE #3 of group dp moved for 2.00 s; 1 transfer is in flight"
        );
    }
}
