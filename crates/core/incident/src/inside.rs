//! The words of what stands still inside an operation that all ranks have begun.

use std::collections::BTreeSet;

use model::{Evidence, Failure, HoldUp, Method, RankChannel, fold_ranks};

use crate::hang::collective;
use crate::words::{duration, who};

/// What is wrong, as a sentence without its beginning.
pub(crate) fn what(failure: &Failure) -> String {
    let (who, place) = (who(&failure.ranks), place(failure));
    let text = match failure.cause {
        HoldUp::NotDelivered if failure.ranks.len() == 1 => {
            format!("what {who} sends and is sent in {place} does not arrive")
        }
        HoldUp::NotDelivered => {
            format!("what is sent between {who} in {place} does not arrive")
        }
        HoldUp::NotTransmitted => {
            format!("{who} does not hand ready data to the network in {place}")
        }
        HoldUp::ReceiverNotReady => {
            format!("{who} takes no more data from the network in {place}")
        }
        HoldUp::GpuNotStarted => format!("the GPU of {who} never began {place}"),
        HoldUp::GpuNotReady => format!("the GPU of {who} stopped sending in {place}"),
        HoldUp::GpuNotTaking => {
            format!("the GPU of {who} does not take what arrived in {place}")
        }
        HoldUp::ProxyStill => {
            format!("NCCL's proxy thread of {who} does not get on in {place}")
        }
        HoldUp::NotEntered => format!("{who} never entered {place}"),
        HoldUp::DeadlockCycle => format!("{who} wait for one another in {place}"),
        HoldUp::Unknown => format!("all began {place}, and it does not end"),
    };
    match flows(failure) {
        Some(flows) => format!("{text} ({flows})"),
        None => text,
    }
}

fn place(failure: &Failure) -> String {
    let places = failure.waits.iter().map(collective).collect::<Vec<_>>();
    places.join(" and ")
}

/// The flows it shows in, if not all of the ranks' flows are struck.
pub(crate) fn flows(failure: &Failure) -> Option<String> {
    let ends = |link: &RankChannel| (link.from, link.to);
    let pairs = failure.links.iter().map(ends).collect::<BTreeSet<_>>();
    let of_pair = |pair: (u32, u32)| {
        let links = failure.links.iter().filter(|link| ends(link) == pair);
        let channels = links.map(|link| u32::from(link.channel)).collect::<Vec<_>>();
        let plural = if channels.len() == 1 { "" } else { "s" };
        let (from, to) = pair;
        format!("rank {from} to {to}, channel{plural} {}", fold_ranks(&channels))
    };
    let texts = pairs.into_iter().map(of_pair).collect::<Vec<_>>();
    (!texts.is_empty()).then(|| texts.join("; "))
}

/// What to look at next.
pub(crate) fn advice(failure: &Failure) -> String {
    let who = who(&failure.ranks);
    match failure.cause {
        HoldUp::NotDelivered if failure.ranks.len() == 1 => {
            format!("look at the network card and cable of {who}")
        }
        HoldUp::NotDelivered => format!(
            "look at the network cards of {who} and the switch between them: counters \
             cannot tell the two ends of a link apart"
        ),
        HoldUp::NotTransmitted | HoldUp::ReceiverNotReady | HoldUp::ProxyStill => {
            format!(
                "look at NCCL's proxy thread of {who}: its core, its memory, its network card"
            )
        }
        HoldUp::GpuNotStarted => {
            format!("look what the stream of {who} waits for: a kernel before it hangs")
        }
        HoldUp::GpuNotReady | HoldUp::GpuNotTaking => {
            format!(
                "look at the GPU of {who}: errors, clocks, a kernel that does not end"
            )
        }
        HoldUp::NotEntered | HoldUp::DeadlockCycle => {
            format!("look at the stack of {who}")
        }
        HoldUp::Unknown => {
            "look at the GPUs: what runs without the network is not seen inside"
                .to_owned()
        }
    }
}

/// The label of evidence for a cause.
pub(crate) fn label(cause: HoldUp) -> &'static str {
    match cause {
        HoldUp::NotEntered => "min_op",
        HoldUp::DeadlockCycle => "circle",
        HoldUp::GpuNotStarted => "not_started",
        HoldUp::GpuNotReady | HoldUp::GpuNotTaking => "gpu_not_ready",
        HoldUp::ReceiverNotReady => "receiver_not_ready",
        HoldUp::NotTransmitted => "not_transmitted",
        HoldUp::ProxyStill => "proxy_still",
        HoldUp::NotDelivered => "not_delivered",
        HoldUp::Unknown => "unknown",
    }
}

/// What was seen.
pub(crate) fn evidence(failure: &Failure) -> Evidence {
    let still = duration(failure.still_s);
    let mut text = format!("no counter of {} moved for {still}", place(failure));
    let mut values = vec![("still_s", failure.still_s)];
    if failure.in_flight > 0 {
        let came = if failure.in_flight == 1 { "transfer is" } else { "transfers are" };
        text += &format!("; {} {came} in flight", failure.in_flight);
        values.push(("in_flight", failure.in_flight as f64));
    }
    Evidence::new(Method::Collective, label(failure.cause), text, &values)
}
