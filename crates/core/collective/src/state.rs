use model::Flow;

/// How far the head of a sending flow has come.
///
/// # Source
/// Mycroft (2025), state classification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowState {
    /// The GPU has made nothing ready.
    NotStarted,
    /// Data is ready that the network was not given.
    NotTransmitted,
    /// The network has data that it did not deliver.
    NotDelivered,
    /// All that was ready is delivered, and more is to come.
    GpuNotReady,
    /// All is delivered.
    Complete,
}

impl FlowState {
    /// The state that the oldest unfinished transfer is in. Where data waits before the
    /// network and in it, what is in it is older.
    pub fn of(flow: &Flow) -> Self {
        let Flow {
            total,
            ready,
            transmitted,
            done,
            ..
        } = *flow;
        if done >= total {
            Self::Complete
        } else if transmitted > done {
            Self::NotDelivered
        } else if ready > transmitted {
            Self::NotTransmitted
        } else if ready > 0 {
            Self::GpuNotReady
        } else {
            Self::NotStarted
        }
    }
}

#[cfg(test)]
mod tests {
    use model::{Direction, RankNs};

    use super::*;

    fn state(ready: u32, transmitted: u32, done: u32, total: u32) -> FlowState {
        FlowState::of(&Flow {
            channel: 0,
            peer: 1,
            direction: Direction::Send,
            total,
            ready,
            transmitted,
            done,
            bytes: 0,
            begun_at: RankNs(0),
            moved_at: RankNs(0),
        })
    }

    /// (10,8,5) is both, and its head is in the network.
    #[test]
    fn the_examples_of_the_paper_are_classified() {
        use FlowState::{Complete, GpuNotReady, NotDelivered, NotStarted, NotTransmitted};
        for ((ready, transmitted, done), expected) in [
            ((0, 0, 0), NotStarted),
            ((10, 4, 4), NotTransmitted),
            ((10, 10, 7), NotDelivered),
            ((10, 8, 5), NotDelivered),
            ((10, 10, 10), GpuNotReady),
            ((64, 64, 60), NotDelivered),
            ((64, 64, 64), Complete),
        ] {
            assert_eq!(state(ready, transmitted, done, 64), expected);
        }
    }

    /// MY-P4, exhaustive over `total <= 8`: the conditions of the table cover every valid
    /// state, only two of them ever hold together, and then the head is in the network.
    #[test]
    fn every_state_has_a_class_and_only_two_of_them_meet() {
        for total in 1..=8 {
            for ready in 0..=total {
                for transmitted in 0..=ready {
                    for done in 0..=transmitted {
                        let rows = [
                            ready == 0,
                            ready > transmitted,
                            transmitted > done,
                            ready > 0 && ready == done && done < total,
                            done == total,
                        ];
                        let holding = rows.iter().filter(|row| **row).count();
                        let both = rows[1] && rows[2];
                        assert_eq!(holding, if both { 2 } else { 1 });
                        let state = state(ready, transmitted, done, total);
                        assert!(rows[state as usize]);
                        assert!(!both || state == FlowState::NotDelivered);
                    }
                }
            }
        }
    }
}
