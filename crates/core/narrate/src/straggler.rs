//! Ranks that make collectives slow from the inside.

use model::{HoldUp, Straggler};

use crate::fact::Worded;
use crate::stall::label;
use crate::words::{self, duration, percent, who};

pub(crate) fn headline(found: &Straggler, first_step: u64) -> String {
    let ratio = found.slow.took_s / found.slow.usual_s;
    // Without marks no step is known.
    let since = if first_step == 0 {
        String::new()
    } else {
        format!(" since step {first_step}")
    };
    // Channels are compared with each other: nothing says that it was ever otherwise.
    format!(
        "{} of group {} takes up to {ratio:.1} times as long {}{since}: {}",
        found.wait.op.name(),
        found.wait.group,
        if found.slow.of_channels {
            "on one channel as on most"
        } else {
            "as usual"
        },
        what(found)
    )
}

/// The channels it shows in, if not in all.
pub(crate) fn channels(found: &Straggler) -> Option<String> {
    let channels: Vec<u32> = found
        .channels
        .iter()
        .map(|channel| u32::from(*channel))
        .collect();
    (!channels.is_empty()).then(|| words::channels(&channels))
}

fn what(found: &Straggler) -> String {
    let who = who(&found.ranks);
    let of = |one, several| words::of(&found.ranks, one, several);
    let text = match found.cause {
        HoldUp::NotDelivered if found.either => {
            format!("data between {who} arrives late")
        }
        HoldUp::NotDelivered => {
            format!("data to and from {who} arrives late")
        }
        HoldUp::NotTransmitted => {
            format!(
                "{who} {} ready data to the network late",
                of("hands", "hand")
            )
        }
        HoldUp::ReceiverNotReady => {
            format!("{who} {} data from the network late", of("takes", "take"))
        }
        HoldUp::ProxyStill => {
            let threads = of("thread", "threads");
            format!(
                "NCCL's proxy {threads} of {who} {} behind",
                of("lags", "lag")
            )
        }
        HoldUp::GpuNotStarted | HoldUp::GpuNotReady | HoldUp::GpuNotTaking => {
            let keep_up = of("does not keep up with its", "do not keep up with their");
            format!("the {} of {who} {keep_up} network", of("GPU", "GPUs"))
        }
        HoldUp::NotEntered | HoldUp::DeadlockCycle | HoldUp::Unknown => {
            format!("{who} {} it late", of("enters", "enter"))
        }
    };
    match channels(found) {
        Some(channels) => format!("{text}, on {channels} only"),
        None => text,
    }
}

pub(crate) fn fact(found: &Straggler) -> Worded {
    let text = format!(
        "{} of the time in slow operations was spent waiting for {}; the slowest took {} \
         instead of {}",
        percent(found.blamed_share),
        who(&found.ranks),
        duration(found.slow.took_s),
        duration(found.slow.usual_s),
    );
    let values = [
        ("blamed_share", found.blamed_share),
        ("took_s", found.slow.took_s),
        ("usual_s", found.slow.usual_s),
        ("cost_s", found.cost_s),
    ];
    Worded::new(label(found.cause), text, &values)
}

#[cfg(test)]
mod tests {
    use model::{CollectiveOp, Slowness, Wait};

    use super::*;

    #[test]
    fn a_straggler_is_named_with_its_channels() {
        let found = Straggler {
            cause: HoldUp::NotDelivered,
            ranks: vec![2],
            either: false,
            channels: vec![1],
            wait: Wait {
                group: "dp".to_owned(),
                op: CollectiveOp::ALLREDUCE,
                ..Wait::default()
            },
            slow: Slowness {
                took_s: 0.3,
                usual_s: 0.1,
                of_channels: false,
            },
            blamed_share: 0.8,
            cost_s: 2.0,
        };
        assert_eq!(
            headline(&found, 7),
            "ALLREDUCE of group dp takes up to 3.0 times as long as usual since step 7: data to \
             and from rank 2 arrives late, on channel 1 only"
        );
        let Worded { label, text, .. } = fact(&found);
        assert_eq!(label, "not_delivered");
        assert_eq!(
            text,
            "80 % of the time in slow operations was spent waiting for rank 2; the slowest took \
             300.0 ms instead of 100.0 ms"
        );
        let late = Straggler {
            cause: HoldUp::NotTransmitted,
            ranks: vec![2, 3],
            channels: Vec::new(),
            ..found.clone()
        };
        assert_eq!(what(&late), "ranks 2-3 hand ready data to the network late");
        let both = Straggler {
            either: true,
            ranks: vec![2, 3],
            ..found
        };
        assert!(what(&both).starts_with("data between ranks 2-3 arrives late"));
    }
}
