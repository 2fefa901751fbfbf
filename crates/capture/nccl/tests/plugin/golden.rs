//! What real NCCL calls for one all-reduce, in its order, version by version: 1,048,576
//! float32 over two channels, four transfers each, as rank 1 of 4.

use model::{CollectiveOp, Communicator, Direction, Operation};

use crate::driver::{
    COLL_API, GROUP, GROUP_API, Handle, Introduction, KERNEL_LAUNCH, Plugin, Sandbox, alone, look,
    only,
};

const HASH: u64 = 0xc0ff_ee00_c0ff_ee00;
const TRANSFERS: i32 = 4;
const BYTES: u64 = 524_288;
/// Channel, peer and whether it sends, in the order NCCL appends them.
const OPS: [(u8, i32, bool); 4] = [(0, 0, false), (0, 2, true), (1, 0, false), (1, 2, true)];

#[test]
fn version_7_is_followed_step_by_step() {
    alone(|sandbox| since_version_4(sandbox, 7));
}

#[test]
fn version_6_is_followed_step_by_step() {
    alone(|sandbox| since_version_4(sandbox, 6));
}

#[test]
fn version_5_is_followed_step_by_step() {
    alone(|sandbox| since_version_4(sandbox, 5));
}

#[test]
fn version_4_is_followed_step_by_step() {
    alone(|sandbox| since_version_4(sandbox, 4));
}

#[test]
fn version_3_is_followed_by_its_proxy_operations() {
    alone(|sandbox| before_version_4(sandbox, 3));
}

#[test]
fn version_2_is_followed_by_its_proxy_operations() {
    alone(|sandbox| before_version_4(sandbox, 2));
}

#[test]
fn version_1_is_followed_by_its_proxy_operations() {
    alone(|sandbox| before_version_4(sandbox, 1));
}

/// Ready, transmitted and done of each flow, ordered by channel and peer: receive, send,
/// receive, send.
fn counters(operation: &Operation) -> Vec<[u32; 3]> {
    let flows = operation.flows.iter();
    flows
        .map(|flow| [flow.ready, flow.transmitted, flow.done])
        .collect()
}

fn since_version_4(sandbox: &Sandbox, version: usize) {
    let plugin = Plugin::open(version);
    let (context, mask) = plugin.init(Introduction::of(HASH));
    assert_eq!(mask, 30);
    let mut reader = sandbox.reader();
    let communicator = Communicator {
        hash: HASH,
        name: "dp".into(),
        rank: 1,
        size: 4,
    };
    assert_eq!(reader.communicators(), [communicator]);

    let coll = enqueue(&plugin, context);
    let reported = only(&mut reader);
    assert_eq!(
        (reported.communicator, reported.op),
        (HASH, CollectiveOp::from_name("allreduce"))
    );
    assert_eq!((reported.sequence, reported.bytes), (0, 4_194_304));

    let ops = OPS.map(|(channel, peer, sends)| {
        let event = plugin.proxy_op(coll, channel, peer, sends, TRANSFERS);
        plugin.start(context, &event)
    });
    plugin.stop(coll);
    for op in ops {
        plugin.record(op, 19);
    }
    let flows = only(&mut reader).flows;
    let routes: Vec<_> = flows
        .iter()
        .map(|flow| (flow.channel, flow.peer, flow.direction))
        .collect();
    let routes_in_order = [
        (0, 0, Direction::Receive),
        (0, 2, Direction::Send),
        (1, 0, Direction::Receive),
        (1, 2, Direction::Send),
    ];
    assert_eq!(routes, routes_in_order);
    assert!(flows.iter().all(|flow| flow.total == 4 && flow.ready == 0));

    let steps = turn_the_proxy(&plugin, context, &ops, |turn| {
        let expected = match turn {
            4 => [[4, 0, 0], [0, 0, 0]],
            5 => [[4, 1, 0], [1, 1, 0]],
            8 => [[4, 4, 0], [4, 4, 0]],
            10 => [[4, 4, 0], [4, 4, 2]],
            12 => [[4, 4, 0], [4, 4, 4]],
            _ => return,
        };
        let found = counters(&only(&mut reader));
        assert_eq!(found, [expected, expected].concat(), "after turn {turn}");
    });
    // The GPU takes what has arrived; the last stop ends the operation.
    let mut receives: Vec<Handle> = [0, 2].iter().flat_map(|op| steps[*op]).collect();
    let last = receives.pop().unwrap();
    for step in receives {
        plugin.stop(step);
    }
    assert_eq!(counters(&only(&mut reader))[2], [4, 4, 3]);
    plugin.stop(last);
    let state = look(&mut reader);
    assert!(state.in_progress.is_empty() && state.lost == 0, "{state:?}");
    let ended = &state.ended[0];
    assert_eq!(counters(ended), [[4; 3]; 4]);
    assert!(ended.flows.iter().all(|flow| flow.bytes == 4 * BYTES));
    let moved = ended.flows.iter().map(|flow| flow.moved_at).max();
    assert!(ended.ended_at >= moved && ended.begun_at <= ended.flows[0].begun_at);
    for op in [0, 2, 3, 1] {
        plugin.stop(ops[op]);
    }
    plugin.finalize(context);
    assert!(reader.is_closed());
    assert_eq!(
        (reader.faults(), reader.dropped(), reader.foreign()),
        (0, 0, 0)
    );
}

/// What the thread that calls for the all-reduce does, up to the collective's handle; it is
/// stopped later.
fn enqueue(plugin: &Plugin, context: Handle) -> Handle {
    let null = std::ptr::null_mut();
    if plugin.version == 4 {
        let group = plugin.start(context, &plugin.event(GROUP, null));
        let coll = plugin.start(context, &plugin.coll(HASH, 0).pointer(8, group));
        plugin.stop(group);
        return coll;
    }
    let group_api = plugin.start(context, &plugin.event(GROUP_API, null));
    plugin.record(group_api, 23);
    let coll_api = plugin.start(context, &plugin.event(COLL_API, group_api));
    plugin.stop(coll_api);
    plugin.record(group_api, 24);
    let launch = plugin.start(context, &plugin.event(KERNEL_LAUNCH, group_api));
    plugin.stop(launch);
    let group = plugin.start(context, &plugin.event(GROUP, null));
    let coll = plugin
        .coll(HASH, 0)
        .pointer(8, coll_api)
        .pointer(104, group);
    let coll = plugin.start(context, &coll);
    plugin.stop(group);
    plugin.stop(group_api);
    coll
}

/// Twelve turns of the progress thread over all operations; `look` is told after each.
/// Returns the steps of each operation, of which those of sends are stopped.
fn turn_the_proxy(
    plugin: &Plugin,
    context: Handle,
    ops: &[Handle; 4],
    mut look: impl FnMut(usize),
) -> [[Handle; 4]; 4] {
    let mut steps = [[std::ptr::null_mut(); 4]; 4];
    for turn in 1..=12 {
        for (op, (_, _, sends)) in OPS.iter().enumerate() {
            let step = (turn - 1) % 4;
            match (turn, sends) {
                (1..=4, _) => {
                    let event = plugin.proxy_step(ops[op], i32::try_from(step).unwrap());
                    steps[op][step] = plugin.start(context, &event);
                    plugin.record_with(steps[op][step], if *sends { 8 } else { 10 }, [9, 0]);
                }
                (5..=8, false) => plugin.record_with(steps[op][step], 11, [BYTES, 0]),
                (5..=8, true) => {
                    plugin.record_with(steps[op][step], 20, [7, 0]);
                    plugin.record_with(steps[op][step], 9, [BYTES, 0]);
                }
                (_, false) => plugin.record_with(steps[op][step], 12, [7, 0]),
                (_, true) => plugin.stop(steps[op][step]),
            }
        }
        look(turn);
    }
    steps
}

fn before_version_4(sandbox: &Sandbox, version: usize) {
    let plugin = Plugin::open(version);
    let (context, mask) = plugin.init(Introduction::of(HASH));
    assert_eq!(mask, 14, "steps tell nothing that operations do not");
    let mut reader = sandbox.reader();
    assert!(reader.communicators().is_empty(), "nobody has told of one");

    let group = plugin.start(context, &plugin.event(GROUP, std::ptr::null_mut()));
    let coll = plugin.start(context, &plugin.coll(HASH, 6).pointer(8, group));
    plugin.stop(coll);
    plugin.stop(group);
    let communicator = Communicator {
        hash: HASH,
        name: "dp".into(),
        rank: 1,
        size: 0,
    };
    assert_eq!(reader.communicators(), [communicator]);

    let send = plugin.start(context, &plugin.proxy_op(coll, 0, 2, true, TRANSFERS));
    let receive = plugin.start(context, &plugin.proxy_op(coll, 0, 0, false, TRANSFERS));
    plugin.record_with(send, 0, [0, 4]);
    plugin.record_with(receive, 4, [0, 3]);
    plugin.record_with(send, 1, [0, 2]);
    plugin.record_with(send, 2, [BYTES, 1]);
    // A step of these versions has arguments of another shape, and is not followed.
    let step = plugin.start(context, &plugin.proxy_step(send, 0));
    plugin.record_with(step, 9, [BYTES, 1]);
    plugin.stop(step);
    let reported = only(&mut reader);
    assert_eq!(
        (reported.op.name(), reported.sequence, reported.bytes),
        ("ALLREDUCE", 6, 4_194_304)
    );
    assert_eq!(counters(&reported), [[3, 0, 0], [2, 1, 0]]);
    assert_eq!(reported.flows[1].bytes, BYTES);

    plugin.record_with(receive, 5, [2 * BYTES, 3]);
    plugin.record_with(receive, 6, [2 * BYTES, 3]);
    plugin.record_with(receive, 7, [0, 2]);
    plugin.record_with(receive, 7, [0, 1]);
    assert_eq!(
        counters(&only(&mut reader))[0],
        [3, 3, 2],
        "the largest count holds"
    );
    for (op, done) in [(send, 3), (receive, 7)] {
        plugin.record_with(op, done, [0, 4]);
        plugin.stop(op);
    }
    let state = look(&mut reader);
    assert_eq!(counters(&state.ended[0]), [[4; 3]; 2]);
    assert_eq!(state.ended[0].flows[0].bytes, 2 * BYTES);
    plugin.finalize(context);
    assert_eq!((reader.faults(), reader.dropped()), (0, 0));
}
