/// A call of a function, as it is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordedCall {
    /// When it began.
    pub start_ns: u64,
    /// When it ended; [`u64::MAX`] while it goes on.
    pub end_ns: u64,
    /// The function, by a number of the recorder's.
    pub function: u32,
    /// Index of the call that made it.
    pub caller: Option<u32>,
}

/// Calls of one thread, recorded within a bound.
///
/// When the bound is reached, the shortest calls that call nothing are dropped: their time counts
/// as their caller's. What is left covers the whole time, so a function that makes a million calls
/// costs no more than one that makes a thousand, and still has a name.
///
/// # Units
/// Nanoseconds of any clock.
/// # Invariants
/// At most `limit` calls. Callers stand before what they call, and enclose it.
/// # Complexity
/// Amortised constant a call: each pass over the calls doubles the shortest that is kept.
/// # Source
/// Ours.
/// # Example
/// ```
/// use laggard_trace::CallTree;
/// let mut tree = CallTree::new(3);
/// tree.begin(0, 0);
/// for at in (0..1_000).step_by(10) {
///     tree.begin(1, at);
///     tree.end(1, at + 5);
/// }
/// tree.finish(1_000);
/// assert_eq!((tree.calls()[0].start_ns, tree.calls()[0].end_ns), (0, 1_000));
/// assert!(tree.calls().len() <= 3);
/// ```
#[derive(Debug)]
pub struct CallTree {
    calls: Vec<RecordedCall>,
    /// Indices of the calls that go on, the outermost first.
    open: Vec<u32>,
    /// Calls that go on and found no room.
    unrecorded: usize,
    /// Calls that call nothing and are shorter count as their caller's.
    shortest_ns: u64,
    limit: usize,
}

impl CallTree {
    /// No calls, and room for `limit`.
    pub fn new(limit: usize) -> Self {
        Self {
            calls: Vec::with_capacity(limit),
            open: Vec::new(),
            unrecorded: 0,
            shortest_ns: 0,
            limit,
        }
    }

    /// A call of a function begins.
    #[inline]
    pub fn begin(&mut self, function: u32, at_ns: u64) {
        if self.calls.len() >= self.limit {
            self.make_room();
        }
        if self.calls.len() >= self.limit || self.unrecorded > 0 {
            self.unrecorded += 1;
            return;
        }
        let caller = self.open.last().copied();
        self.open.push(self.calls.len() as u32);
        self.calls.push(RecordedCall {
            start_ns: at_ns,
            end_ns: u64::MAX,
            function,
            caller,
        });
    }

    /// The innermost call of a function ends, and with it what it called. The end of a call whose
    /// beginning is not recorded is ignored.
    #[inline]
    pub fn end(&mut self, function: u32, at_ns: u64) {
        if self.unrecorded > 0 {
            self.unrecorded -= 1;
            return;
        }
        let is_it = |index: &u32| {
            let call = self.calls.get(*index as usize);
            call.is_some_and(|call| call.function == function)
        };
        if let Some(place) = self.open.iter().rposition(is_it) {
            self.close(place, at_ns);
        }
    }

    /// The recording ends: so do all calls.
    pub fn finish(&mut self, at_ns: u64) {
        self.unrecorded = 0;
        self.close(0, at_ns);
    }

    /// The calls, in the order in which they began.
    pub fn calls(&self) -> &[RecordedCall] {
        &self.calls
    }

    /// Ends the calls that go on, from a place on.
    fn close(&mut self, place: usize, at_ns: u64) {
        while self.open.len() > place {
            let Some(index) = self.open.pop() else { break };
            let is_last = self.calls.len() == index as usize + 1;
            if let Some(call) = self.calls.get_mut(index as usize) {
                call.end_ns = at_ns.max(call.start_ns);
                if is_last && call.end_ns - call.start_ns < self.shortest_ns {
                    self.calls.pop();
                }
            }
        }
    }

    /// Drops the shortest calls that call nothing, until a quarter of the room is free or only
    /// calls are left that go on.
    #[cold]
    fn make_room(&mut self) {
        const FIRST_NS: u64 = 1_000;
        while self.calls.len() > self.limit / 4 * 3 && self.calls.len() > self.open.len() {
            let longest = self.shortest_ns > u64::MAX / 4;
            self.shortest_ns = self.shortest_ns.saturating_mul(2).max(FIRST_NS);
            self.drop_short();
            if longest {
                break;
            }
        }
    }

    fn drop_short(&mut self) {
        let mut is_kept = vec![false; self.calls.len()];
        // From behind: what is called stands after its caller, and keeps it.
        for (index, call) in self.calls.iter().enumerate().rev() {
            let kept = &mut is_kept[index];
            *kept |= call.end_ns == u64::MAX || call.end_ns - call.start_ns >= self.shortest_ns;
            if *kept && let Some(caller) = call.caller {
                is_kept[caller as usize] = true;
            }
        }
        let mut moved = Vec::with_capacity(self.calls.len());
        let mut place = 0;
        for kept in &is_kept {
            moved.push(place);
            place += u32::from(*kept);
        }
        let mut index = 0;
        self.calls.retain_mut(|call| {
            call.caller = call.caller.map(|caller| moved[caller as usize]);
            index += 1;
            is_kept[index - 1]
        });
        for open in &mut self.open {
            *open = moved[*open as usize];
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Time of each function that none of its calls takes, as the calls tell.
    fn own_ns(tree: &CallTree) -> std::collections::BTreeMap<u32, u64> {
        let mut own = std::collections::BTreeMap::new();
        for call in tree.calls() {
            let took = call.end_ns - call.start_ns;
            *own.entry(call.function).or_default() += took;
            if let Some(caller) = call.caller {
                *own.entry(tree.calls()[caller as usize].function)
                    .or_default() -= took;
            }
        }
        own
    }

    #[test]
    fn a_function_of_a_million_calls_leaves_its_callers_time() {
        let mut tree = CallTree::new(1_000);
        tree.begin(0, 0);
        tree.begin(1, 10_000);
        let mut now = 10_000;
        for _ in 0..1_000_000 {
            tree.begin(2, now);
            tree.end(2, now + 50);
            now += 100;
        }
        tree.end(1, now);
        tree.begin(3, now);
        tree.end(3, now + 5_000_000);
        tree.finish(now + 5_000_000);
        let own = own_ns(&tree);
        assert!(own[&1] > 99_000_000, "{own:?}");
        assert_eq!((own[&0], own[&3]), (10_000, 5_000_000));
    }

    #[test]
    fn ends_without_a_beginning_are_ignored() {
        let mut tree = CallTree::new(10);
        tree.end(7, 5);
        tree.begin(1, 10);
        tree.end(7, 20);
        tree.end(1, 30);
        assert_eq!(tree.calls().len(), 1);
        assert_eq!(tree.calls()[0].end_ns, 30);
    }

    #[test]
    fn a_recursion_deeper_than_the_room_keeps_its_callers() {
        let mut tree = CallTree::new(8);
        for depth in 0..100 {
            tree.begin(0, depth);
        }
        for depth in 0..100 {
            tree.end(0, 100 + depth);
        }
        tree.begin(1, 300);
        tree.end(1, 5_000);
        tree.finish(6_000);
        assert!(tree.calls().len() <= 8);
        assert!(tree.calls().iter().any(|call| call.function == 1));
    }

    proptest! {
        /// Whatever is called, and however little room there is: calls nest, none is after its
        /// caller, and together they account for all of the time.
        #[test]
        fn calls_nest_and_cover_all_of_the_time(
            moves in prop::collection::vec((any::<bool>(), 0u32..4, 0u64..100_000), 1..400),
            limit in 4usize..40,
        ) {
            let mut tree = CallTree::new(limit);
            let mut now = 0;
            tree.begin(9, now);
            for (begins, function, later) in moves {
                now += later;
                if begins { tree.begin(function, now) } else { tree.end(function, now) }
                prop_assert!(tree.calls().len() <= limit);
            }
            tree.finish(now);
            for (index, call) in tree.calls().iter().enumerate() {
                prop_assert!(call.start_ns <= call.end_ns);
                if let Some(caller) = call.caller {
                    prop_assert!((caller as usize) < index);
                    let caller = tree.calls()[caller as usize];
                    prop_assert!(caller.start_ns <= call.start_ns && call.end_ns <= caller.end_ns);
                }
            }
            let accounted_ns: u64 = own_ns(&tree).values().sum();
            prop_assert!(accounted_ns == now || tree.calls().is_empty());
        }
    }
}
