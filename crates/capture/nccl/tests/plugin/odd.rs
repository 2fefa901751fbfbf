//! What NCCL does besides the expected, on some release, transport or failure.

use std::ffi::c_int;
use std::ptr;
use std::sync::mpsc::sync_channel;
use std::thread;

use model::{Direction, Flow, RankNs};
use ring::LiveState;

use crate::driver::{
    COLL_API, GROUP_API, Handle, Introduction, Plugin, alone, alone_with, look, only,
};

const NULL: Handle = ptr::null_mut();

/// A plugin with one communicator and one collective that is enqueued.
struct Begun {
    plugin: Plugin,
    context: Handle,
    coll: Handle,
}

fn begun() -> Begun {
    let plugin = Plugin::open(6);
    let (context, _) = plugin.init(Introduction::of(7));
    let coll = plugin.start(context, &plugin.coll(7, 0));
    plugin.stop(coll);
    Begun {
        plugin,
        context,
        coll,
    }
}

impl Begun {
    /// A proxy operation that is worked on, to peer 2.
    fn flow(&self, channel: u8, sends: bool, transfers: c_int) -> Handle {
        let event = self
            .plugin
            .proxy_op(self.coll, channel, 2, sends, transfers);
        let flow = self.plugin.start(self.context, &event);
        self.plugin.record(flow, 19);
        flow
    }

    fn step(&self, flow: Handle, step: c_int) -> Handle {
        self.plugin
            .start(self.context, &self.plugin.proxy_step(flow, step))
    }
}

#[test]
fn a_send_that_waits_for_its_peer_a_thousand_times_is_ready_once() {
    alone(|sandbox| {
        let begun = begun();
        let step = begun.step(begun.flow(0, true, 4), 0);
        begun.plugin.record(step, 8);
        for _ in 0..1000 {
            begun.plugin.record_with(step, 20, [77, 0]);
        }
        let flow = only(&mut sandbox.reader()).flows[0];
        assert_eq!((flow.ready, flow.transmitted, flow.bytes), (1, 0, 0));
    });
}

#[test]
fn a_receive_that_is_begun_again_and_again_is_asked_for_once() {
    alone(|sandbox| {
        let begun = begun();
        let flow = begun.flow(0, false, 4);
        for repeats in [2, 32] {
            let steps: Vec<_> = (0..repeats).map(|_| begun.step(flow, 0)).collect();
            assert_eq!(
                only(&mut sandbox.reader()).flows[0].ready,
                u32::from(repeats == 32)
            );
            begun.plugin.record(*steps.last().unwrap(), 10);
            assert_eq!(only(&mut sandbox.reader()).flows[0].ready, 1);
        }
    });
}

#[test]
fn a_proxy_operation_without_states_is_no_flow_and_holds_nothing_up() {
    alone(|sandbox| {
        let begun = begun();
        let event = begun.plugin.proxy_op(begun.coll, 0, 2, false, 4);
        begun.plugin.start(begun.context, &event);
        let state = look(&mut sandbox.reader());
        assert!(
            state
                .in_progress
                .iter()
                .all(|operation| operation.may_have_ended)
        );
        assert_eq!(state.ended.len(), 1);
        assert!(state.ended[0].flows.is_empty());
    });
}

#[test]
fn a_proxy_operation_may_begin_after_its_collective_was_stopped() {
    alone(|sandbox| {
        let begun = begun();
        let flow = begun.flow(0, true, 1);
        assert_eq!(only(&mut sandbox.reader()).flows.len(), 1);
        begun.plugin.send_transfer(begun.context, flow, 0);
        assert_eq!(look(&mut sandbox.reader()).ended[0].flows[0].done, 1);
    });
}

#[test]
fn stops_that_come_twice_or_too_late_change_nothing() {
    alone(|sandbox| {
        let begun = begun();
        let flow = begun.flow(0, true, 4);
        let step = begun.step(flow, 0);
        begun.plugin.record_with(step, 9, [5, 0]);
        for _ in 0..3 {
            begun.plugin.stop(step);
            begun.plugin.stop(begun.coll);
            begun.plugin.stop(flow);
        }
        let counted = only(&mut sandbox.reader()).flows[0];
        assert_eq!(
            (counted.transmitted, counted.done, counted.bytes),
            (1, 1, 5)
        );
        // Its slots go to others many times over.
        for sequence in 1..20_000 {
            let coll = begun
                .plugin
                .start(begun.context, &begun.plugin.coll(7, sequence));
            let event = begun.plugin.proxy_op(coll, 0, 2, true, 1);
            let flow = begun.plugin.start(begun.context, &event);
            begun.plugin.record(flow, 19);
            if sequence < 19_999 {
                begun.plugin.stop(coll);
                begun.plugin.send_transfer(begun.context, flow, 0);
            }
        }
        let before = only(&mut sandbox.reader());
        begun.plugin.stop(step);
        begun.plugin.record(step, 20);
        begun.plugin.record(flow, 19);
        begun.plugin.stop(begun.coll);
        assert_eq!(only(&mut sandbox.reader()), before);
    });
}

#[test]
fn stopping_nothing_is_fine() {
    alone(|sandbox| {
        let begun = begun();
        begun.plugin.stop(NULL);
        assert_eq!(sandbox.reader().faults(), 0);
    });
}

#[test]
fn states_without_arguments_count_and_garbage_of_group_states_is_not_read() {
    alone(|sandbox| {
        let begun = begun();
        let step = begun.step(begun.flow(0, true, 4), 0);
        for state in [8, 20, 9] {
            begun.plugin.record(step, state);
        }
        let group = begun.plugin.event(GROUP_API, NULL);
        let group = begun.plugin.start(begun.context, &group);
        for handle in [group, begun.coll, step] {
            for state in [23, 24] {
                begun.plugin.record(handle, state);
                begun
                    .plugin
                    .record_at(handle, state, ptr::without_provenance(0xbad));
            }
        }
        let flow = only(&mut sandbox.reader()).flows[0];
        assert_eq!((flow.ready, flow.transmitted, flow.bytes), (1, 1, 0));
        let old = Plugin::open(2);
        let flow = old.start(begun.context, &old.proxy_op(begun.coll, 1, 2, true, 4));
        old.record(flow, 2);
        assert_eq!(only(&mut sandbox.reader()).flows[1].transmitted, 0);
    });
}

#[test]
fn steps_without_a_parent_are_not_followed() {
    alone(|sandbox| {
        let begun = begun();
        let step = begun.step(NULL, 0);
        assert!(step.is_null());
        begun.plugin.record_with(step, 9, [1, 0]);
        begun.plugin.stop(step);
        assert_eq!(look(&mut sandbox.reader()).ended.len(), 1);
    });
}

#[test]
fn contexts_parents_and_processes_of_others_are_never_followed() {
    alone(|sandbox| {
        let begun = begun();
        let plugin = &begun.plugin;
        let salt = begun.context.addr() & !0xffff_ffff_ffff;
        let wild: Vec<Handle> = [1, 8, 0xbad, 0x7fff_ffff_ffff_fff8, usize::MAX, salt]
            .map(ptr::without_provenance_mut)
            // Of a neighbour that has the same numbers, and of this process, of each kind.
            .into_iter()
            .chain([begun.context, begun.coll].map(|own| own.map_addr(|own| !own)))
            .chain((0..16).map(|kind| ptr::without_provenance_mut(salt | kind << 44 | 0x63)))
            .collect();
        let event = plugin.proxy_op(begun.coll, 0, 2, true, 4).i32(24, 1);
        assert!(
            plugin.start(begun.context, &event).is_null(),
            "another process's"
        );
        for context in &wild {
            let coll = plugin.start(*context, &plugin.coll(7, 9));
            assert!(coll.is_null(), "{context:?}");
            for parent in &wild {
                let flow = plugin.start(*context, &plugin.proxy_op(*parent, 0, 2, true, 4));
                assert!(flow.is_null(), "{parent:?}");
                let foreign = plugin.proxy_op(*parent, 0, 2, true, 4).i32(24, 1);
                assert!(plugin.start(*context, &foreign).is_null());
                let step = plugin.start(*context, &plugin.proxy_step(*parent, 0));
                plugin.record_with(step, 9, [1, 0]);
                plugin.stop(step);
            }
            plugin.record(*context, 19);
            plugin.stop(*context);
            plugin.finalize(*context);
        }
        plugin.finalize(NULL);
        let mut reader = sandbox.reader();
        let state = look(&mut reader);
        assert!(
            state
                .in_progress
                .iter()
                .all(|operation| operation.may_have_ended)
        );
        assert_eq!(state.ended.len(), 1);
        assert_eq!(reader.foreign(), 1 + wild.len().pow(2) as u64);
        assert_eq!((reader.faults(), reader.is_closed()), (0, false));
    });
}

#[test]
fn what_a_version_does_not_set_is_not_looked_at() {
    alone(|sandbox| {
        for version in 1..=7 {
            let plugin = Plugin::open(version);
            let hash = version as u64;
            let (context, _) = plugin.init(Introduction::of(hash));
            for garbage in [0, 1, u64::MAX, 0x5555_5555_5555_5555] {
                let event = plugin.coll(hash, 3).with_garbage(garbage);
                let coll = plugin.start(context, &event);
                let event = plugin.proxy_op(coll, 1, 2, true, 1).with_garbage(garbage);
                plugin.start(context, &event);
                plugin.stop(coll);
                let event = plugin.p2p(hash, true, 2).with_garbage(garbage);
                plugin.stop(plugin.start(context, &event));
            }
            let ended = look(&mut sandbox.reader()).ended;
            let ended: Vec<_> = ended
                .iter()
                .filter(|ended| ended.communicator == hash)
                .collect();
            assert_eq!(ended.len(), 8, "version {version}");
            for pair in ended.chunks(2) {
                assert_eq!((pair[0].op.name(), pair[0].bytes), ("ALLREDUCE", 4_194_304));
                assert_eq!((pair[1].op.name(), pair[1].bytes), ("SEND", 200));
            }
        }
        assert_eq!(sandbox.reader().faults(), 0);
    });
}

#[test]
fn unknown_events_and_states_are_declined() {
    alone(|sandbox| {
        let begun = begun();
        let flow = begun.flow(0, true, 4);
        let step = begun.step(flow, 0);
        let before = only(&mut sandbox.reader());
        for bit in (0..64).filter(|bit| !(1..=4).contains(bit)) {
            let event = begun.plugin.event(1 << bit, begun.coll);
            assert!(begun.plugin.start(begun.context, &event).is_null());
        }
        for state in [
            -1,
            6,
            12,
            13,
            18,
            21,
            22,
            25,
            30,
            31,
            99,
            c_int::MAX,
            c_int::MIN,
        ] {
            for handle in [flow, step, begun.coll] {
                begun.plugin.record_with(handle, state, [5, 5]);
            }
        }
        assert_eq!(only(&mut sandbox.reader()), before);
    });
}

#[test]
fn all_64_channels_are_distinguished() {
    alone(|sandbox| {
        let begun = begun();
        let flows: Vec<_> = (0..64)
            .map(|channel| begun.flow(channel, true, 1))
            .collect();
        begun.plugin.send_transfer(begun.context, flows[63], 0);
        let counted = only(&mut sandbox.reader()).flows;
        let done: Vec<_> = counted
            .iter()
            .map(|flow| (flow.channel, flow.done))
            .collect();
        let expected = (0..64).map(|channel| (channel, u32::from(channel == 63)));
        assert_eq!(done, expected.collect::<Vec<_>>());
    });
}

#[test]
fn a_full_table_loses_the_oldest_and_says_so() {
    alone_with(&[("LAGGARD_NCCL_OPERATIONS", "64")], |sandbox| {
        let begun = begun();
        let mut reader = sandbox.reader();
        for sequence in 1..=200 {
            let coll = begun
                .plugin
                .start(begun.context, &begun.plugin.coll(7, sequence));
            for channel in 0..8 {
                let event = begun.plugin.proxy_op(coll, channel, 2, true, 4);
                let flow = begun.plugin.start(begun.context, &event);
                begun.plugin.record(flow, 19);
            }
        }
        let state = look(&mut reader);
        assert_eq!(state.in_progress.len(), 64);
        assert_eq!(state.lost, 201 - 64);
        let flows = state
            .in_progress
            .iter()
            .map(|reported| reported.flows.len())
            .sum::<usize>();
        assert_eq!(flows, 256);
        assert_eq!(reader.dropped(), (200 - 64) + (1600 - 256));
        // More peers than there are counters for sends.
        let handles = (0..30_000).map(|peer| {
            begun
                .plugin
                .start(begun.context, &begun.plugin.p2p(7, true, peer))
        });
        assert!(handles.filter(|handle| handle.is_null()).count() > 10_000);
    });
}

#[test]
fn communicators_are_introduced_by_eight_threads_at_once() {
    alone(|sandbox| {
        let plugin = Plugin::open(6);
        let contexts: Vec<usize> = thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|hash| scope.spawn(move || plugin.init(Introduction::of(hash)).0.addr()))
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect()
        });
        assert_eq!(sandbox.tables().len(), 1);
        let mut hashes: Vec<_> = sandbox
            .reader()
            .communicators()
            .iter()
            .map(|known| known.hash)
            .collect();
        hashes.sort_unstable();
        assert_eq!(hashes, (0..8).collect::<Vec<_>>());
        let mut distinct = contexts.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(distinct.len(), 8);
    });
}

#[test]
fn a_communicator_may_end_while_another_goes_on() {
    alone(|sandbox| {
        let begun = begun();
        let (other, _) = begun.plugin.init(Introduction::of(8));
        begun.plugin.finalize(begun.context);
        let coll = begun.plugin.start(other, &begun.plugin.coll(8, 0));
        let mut reader = sandbox.reader();
        assert!(!reader.is_closed());
        let state = look(&mut reader);
        assert_eq!(
            (
                state.ended[0].communicator,
                state.in_progress[0].communicator
            ),
            (7, 8)
        );
        begun.plugin.stop(coll);
        begun.plugin.finalize(other);
        begun.plugin.finalize(other);
        assert!(reader.is_closed());
    });
}

#[test]
fn an_aborted_communicator_leaves_no_operation_open() {
    alone(|sandbox| {
        let begun = begun();
        let flow = begun.flow(0, true, 4);
        let mut reader = sandbox.reader();
        assert_eq!(look(&mut reader).in_progress.len(), 1);
        begun.plugin.finalize(begun.context);
        let state = look(&mut reader);
        assert!(state.in_progress.is_empty() && state.ended.is_empty());
        // Its progress thread may still have something to say.
        begun.plugin.send_transfer(begun.context, flow, 0);
        begun.plugin.stop(flow);
        assert_eq!((reader.faults(), reader.is_closed()), (0, true));
    });
}

#[test]
fn a_library_that_was_closed_is_still_there_when_it_is_opened_again() {
    alone(|sandbox| {
        let begun = begun();
        let flow = begun.flow(0, true, 4);
        begun.plugin.close();
        // A call that was on its way.
        begun.plugin.send_transfer(begun.context, flow, 0);
        let again = Plugin::open(6);
        again.send_transfer(begun.context, flow, 1);
        let (context, mask) = again.init(Introduction::of(9));
        assert_eq!(mask, 30);
        again.stop(again.start(context, &again.coll(9, 0)));
        let mut reader = sandbox.reader();
        let state = look(&mut reader);
        assert_eq!(state.in_progress[0].flows[0].done, 2);
        assert_eq!(state.ended[0].communicator, 9);
        assert_eq!(sandbox.tables().len(), 1);
    });
}

#[test]
fn steps_that_a_changed_mask_swallowed_are_made_up_for() {
    alone(|sandbox| {
        let begun = begun();
        let flow = begun.flow(0, true, 4);
        begun.plugin.send_transfer(begun.context, flow, 0);
        // Steps 1 and 2 are not told; neither is that the next operation is worked on.
        begun.plugin.send_transfer(begun.context, flow, 3);
        let event = begun.plugin.proxy_op(begun.coll, 1, 2, true, 1);
        let silent = begun.plugin.start(begun.context, &event);
        begun.plugin.record(begun.step(silent, 0), 8);
        let counted = only(&mut sandbox.reader()).flows;
        assert_eq!(
            (counted[0].ready, counted[0].transmitted, counted[0].done),
            (4, 4, 4)
        );
        assert_eq!((counted.len(), counted[1].ready), (2, 0));
        // Nor what is above it.
        let event = begun.plugin.proxy_op(NULL, 1, 2, true, 1);
        assert!(begun.plugin.start(begun.context, &event).is_null());
        let (context, _) = Plugin::open(2).init(Introduction::of(7));
        assert!(
            begun
                .plugin
                .start(context, &begun.plugin.coll(7, 1))
                .is_null()
        );
    });
}

#[test]
fn a_communicator_may_have_no_name_or_a_very_long_one() {
    alone(|sandbox| {
        let plugin = Plugin::open(6);
        let long = std::ffi::CString::new("n".repeat(500)).unwrap();
        for (hash, name) in [(1, ptr::null()), (2, long.as_ptr())] {
            plugin.init(Introduction {
                name,
                ..Introduction::of(hash)
            });
        }
        drop(long);
        let communicators = sandbox.reader().communicators();
        assert_eq!(communicators[0].name, "");
        assert_eq!(communicators[1].name, "n".repeat(120));
    });
}

#[test]
fn a_group_may_span_two_communicators() {
    alone(|sandbox| {
        let begun = begun();
        let plugin = &begun.plugin;
        let (other, _) = plugin.init(Introduction::of(8));
        let group = plugin.start(begun.context, &plugin.event(GROUP_API, NULL));
        let api = plugin.start(other, &plugin.event(COLL_API, group));
        plugin.start(other, &plugin.coll(8, 0).pointer(8, api));
        plugin.stop(api);
        plugin.stop(group);
        assert_eq!(only(&mut sandbox.reader()).communicator, 8);
    });
}

#[test]
fn a_replayed_graph_begins_its_collective_each_time() {
    alone(|sandbox| {
        let begun = begun();
        let plugin = begun.plugin;
        let api = plugin.start(begun.context, &plugin.event(COLL_API, NULL));
        plugin.stop(api);
        let (api, context) = (api.addr(), begun.context.addr());
        let replay = move || {
            let context = ptr::without_provenance_mut(context);
            for _ in 0..3 {
                let event = plugin
                    .coll(7, 4)
                    .pointer(8, ptr::without_provenance::<u8>(api));
                let coll = plugin.start(context, &event);
                let event = plugin.proxy_op(coll, 0, 2, true, 1);
                let flow = plugin.start(context, &event);
                plugin.stop(coll);
                plugin.send_transfer(context, flow, 0);
            }
        };
        thread::spawn(replay).join().unwrap();
        let ended = look(&mut sandbox.reader()).ended;
        assert_eq!(ended.len(), 1 + 3);
        assert!(
            ended[1..]
                .iter()
                .all(|reported| reported.sequence == 4 && reported.flows.len() == 1)
        );
    });
}

#[test]
fn sends_and_receives_are_counted_for_each_peer() {
    alone(|sandbox| {
        let begun = begun();
        let calls = [(true, 2), (true, 2), (false, 2), (true, 3), (true, 2)];
        for (sends, peer) in calls {
            let event = begun.plugin.p2p(7, sends, peer);
            let p2p = begun.plugin.start(begun.context, &event);
            let event = begun.plugin.proxy_op(p2p, 0, peer, sends, 1);
            let flow = begun.plugin.start(begun.context, &event);
            begun.plugin.stop(p2p);
            begun.plugin.send_transfer(begun.context, flow, 0);
        }
        let ended = look(&mut sandbox.reader()).ended;
        let reported = ended[1..]
            .iter()
            .map(|reported| (reported.op.name(), reported.sequence));
        let sequences = [
            ("SEND", 0),
            ("SEND", 1),
            ("RECV", 0),
            ("SEND", 0),
            ("SEND", 2),
        ];
        assert_eq!(reported.collect::<Vec<_>>(), sequences);
        let receive = ended[3].flows[0];
        assert_eq!((receive.direction, receive.peer), (Direction::Receive, 2));
    });
}

/// What NCCL has: a thread that enqueues, one for each channel that moves the data, and beside them
/// the agent. Nothing is lost, and no counter is ever seen ahead of the one before it.
#[test]
fn threads_that_enqueue_and_that_move_data_are_followed_while_they_are_read() {
    const OPERATIONS: u64 = 3000;
    const CHANNELS: u8 = 4;
    const TRANSFERS: c_int = 4;
    alone(|sandbox| {
        let plugin = Plugin::open(6);
        let (context, _) = plugin.init(Introduction::of(7));
        // Handles are never followed: their numbers are all there is to them.
        let context = context.addr();
        let handle = ptr::without_provenance_mut::<std::ffi::c_void>;
        let mut reader = sandbox.reader();
        thread::scope(|threads| {
            let (mut queues, mut moving) = (Vec::new(), Vec::new());
            for _ in 0..CHANNELS {
                let (queue, flows) = sync_channel::<usize>(16);
                queues.push(queue);
                let thread = threads.spawn(move || {
                    for flow in flows.into_iter().map(handle) {
                        plugin.record(flow, 19);
                        for step in 0..TRANSFERS {
                            plugin.send_transfer(handle(context), flow, step);
                        }
                    }
                });
                moving.push(thread);
            }
            threads.spawn(move || {
                for sequence in 0..OPERATIONS {
                    let coll = plugin.start(handle(context), &plugin.coll(7, sequence));
                    let flow = |channel| {
                        let event = plugin.proxy_op(coll, channel, 2, true, TRANSFERS);
                        plugin.start(handle(context), &event).addr()
                    };
                    let flows: Vec<usize> = (0..CHANNELS).map(flow).collect();
                    plugin.stop(coll);
                    for (queue, flow) in queues.iter().zip(flows) {
                        queue.send(flow).unwrap();
                    }
                }
            });
            while moving.iter().any(|thread| !thread.is_finished()) {
                // So early that nothing counts as settled.
                let state = reader.read(RankNs(0));
                assert_eq!((state.lost, state.ended.len()), (0, 0));
                for flow in state.in_progress.iter().flat_map(|open| &open.flows) {
                    let Flow {
                        total,
                        ready,
                        transmitted,
                        done,
                        ..
                    } = *flow;
                    assert!(done <= transmitted && transmitted <= ready && ready <= total);
                }
            }
        });
        let LiveState {
            mut ended, lost, ..
        } = look(&mut reader);
        assert_eq!((ended.len() as u64, lost), (OPERATIONS, 0));
        ended.sort_by_key(|operation| operation.sequence);
        for (operation, sequence) in ended.iter().zip(0..) {
            assert_eq!(operation.sequence, sequence);
            let done: Vec<[u32; 2]> = operation
                .flows
                .iter()
                .map(|flow| [flow.done, flow.total])
                .collect();
            assert_eq!(done, [[TRANSFERS.unsigned_abs(); 2]; CHANNELS as usize]);
        }
        assert_eq!((reader.faults(), reader.dropped()), (0, 0));
    });
}
