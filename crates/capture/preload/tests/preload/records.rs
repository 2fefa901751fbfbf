//! What is told of calls.

use std::ptr;

use model::{CollectiveOp, Communicator, Operation};

use crate::driver::{Comm, alone, look};

#[test]
fn calls_are_counted_by_kind_and_by_peer_as_the_plugin_does() {
    alone(|sandbox| {
        let (torch, _) = sandbox.linked();
        let comm = torch.init_rank('a');
        for _ in 0..2 {
            for (function, count) in [
                (c"all_reduce", 100),
                (c"all_gather", 10),
                (c"reduce_scatter", 20),
                (c"broadcast", 30),
                (c"bcast", 40),
                (c"reduce", 50),
            ] {
                torch.collective(function, comm, count);
            }
            for peer in [2, 3] {
                torch.to(c"send_to", comm, 7, peer);
                torch.to(c"receive_from", comm, 7, peer);
            }
        }
        let state = look(&mut sandbox.reader());
        let reported = |operation: &Operation| {
            (
                operation.op.name(),
                operation.sequence,
                operation.bytes,
                operation.peer(),
            )
        };
        let round: Vec<_> = state.ended.iter().map(reported).collect();
        let expected = |round: u64| {
            [
                ("ALLREDUCE", round, 400, None),
                ("ALLGATHER_BASE", round, 40, None),
                ("REDUCE_SCATTER_BASE", round, 80, None),
                ("BROADCAST", 2 * round, 120, None),
                ("BROADCAST", 2 * round + 1, 160, None),
                ("REDUCE", round, 200, None),
                ("SEND", round, 14, Some(2)),
                ("RECV", round, 14, Some(2)),
                ("SEND", round, 14, Some(3)),
                ("RECV", round, 14, Some(3)),
            ]
        };
        assert_eq!(round, [expected(0), expected(1)].concat());
        let ordered = |o: &Operation| o.ended_at.unwrap() >= o.begun_at;
        assert!(state.ended.iter().all(ordered));
        // Collectives are one lane, and so are sends to, and receives from, each peer.
        let open = state
            .in_progress
            .iter()
            .map(|open| (open.op.name(), open.sequence));
        let open: Vec<_> = open.collect();
        let lanes = [
            ("REDUCE", 1),
            ("SEND", 1),
            ("RECV", 1),
            ("SEND", 1),
            ("RECV", 1),
        ];
        assert_eq!(open, lanes);
        assert!(state.in_progress.iter().all(|open| open.may_have_ended));
    });
}

#[test]
fn what_is_called_for_in_a_group_is_under_way_until_the_outermost_ends() {
    alone(|sandbox| {
        let (torch, nccl) = sandbox.linked();
        let comm = torch.init_rank('a');
        let mut reader = sandbox.reader();
        for answer in [0, 7, 5] {
            nccl.answer(0);
            torch.call(c"group_start");
            torch.call(c"group_start");
            for peer in 0..100 {
                torch.to(c"send_to", comm, 1, peer);
            }
            torch.call(c"group_end");
            let state = look(&mut reader);
            assert!(state.ended.is_empty());
            let open = state.in_progress.iter().filter(|open| !open.may_have_ended);
            assert_eq!(open.count(), 100);
            nccl.answer(answer);
            torch.call(c"group_end");
            assert_eq!(look(&mut reader).ended.len(), 100, "whatever NCCL says");
        }
    });
}

#[test]
fn a_group_nccl_did_not_open_is_none() {
    alone(|sandbox| {
        let (torch, nccl) = sandbox.linked();
        let comm = torch.init_rank('a');
        nccl.answer(5);
        torch.call(c"group_start");
        nccl.answer(0);
        torch.collective(c"all_reduce", comm, 1);
        assert_eq!(look(&mut sandbox.reader()).ended.len(), 1);
        torch.call(c"group_end");
    });
}

fn known(communicators: &[Communicator]) -> Vec<(u32, u32)> {
    communicators
        .iter()
        .map(|known| (known.rank, known.size))
        .collect()
}

#[test]
fn communicators_are_the_same_by_whatever_call_they_are_made() {
    alone(|sandbox| {
        let (torch, nccl) = sandbox.linked();
        let first = torch.init_rank('a');
        let mut comms = vec![first];
        comms.push(torch.init(c"init_rank_config", 'b').0);
        comms.push(torch.init(c"init_rank_scalable", 'c').0);
        nccl.answer(7);
        comms.push(torch.init(c"init_rank_config", 'd').0);
        nccl.answer(2);
        assert_eq!(torch.init(c"init_rank", 'e').1, 2, "refused");
        nccl.answer(0);
        comms.extend(torch.init_all(2));
        comms.push(torch.split(first, 0, 1));
        comms.push(torch.split(first, 0, 1));
        assert_eq!(torch.split(first, -1, 0), ptr::null_mut());
        let reader = sandbox.reader();
        let made = reader.communicators();
        let places = [
            (1, 4),
            (1, 4),
            (1, 4),
            (1, 4),
            (0, 2),
            (1, 2),
            (1, 2),
            (1, 2),
        ];
        assert_eq!(known(&made), places);
        let mut hashes: Vec<_> = made.iter().map(|known| known.hash).collect();
        assert_eq!(hashes[4], hashes[5], "ranks of one communicator");
        hashes.sort_unstable();
        hashes.dedup();
        assert_eq!(hashes.len(), 7);
        for comm in comms {
            torch.collective(c"all_reduce", comm, 1);
        }
        assert_eq!(reader.dropped(), 0);
        assert_eq!(look(&mut sandbox.reader()).ended.len(), 8);
    });
}

#[test]
fn communicators_made_in_a_group_are_there_when_it_ends() {
    alone(|sandbox| {
        let (torch, _) = sandbox.linked();
        let mut comms: [Comm; 2] = [ptr::null_mut(); 2];
        torch.call(c"group_start");
        for (comm, name) in comms.iter_mut().zip(['a', 'b']) {
            assert_eq!(torch.init_at(comm, name), 0);
        }
        assert!(sandbox.tables().is_empty());
        torch.call(c"group_end");
        assert_eq!(known(&sandbox.reader().communicators()), [(1, 4), (1, 4)]);
    });
}

#[test]
fn a_communicator_that_ended_is_over_and_its_address_may_be_used_again() {
    alone(|sandbox| {
        let (torch, _) = sandbox.linked();
        let comm = torch.init_rank('a');
        torch.call(c"group_start");
        torch.collective(c"all_reduce", comm, 1);
        torch.with(c"comm_abort", comm);
        torch.call(c"group_end");
        let mut reader = sandbox.reader();
        let state = look(&mut reader);
        assert!(state.in_progress.is_empty(), "nobody waits in it any more");
        assert!(reader.is_closed());
        torch.collective(c"all_reduce", comm, 1);
        assert_eq!(reader.dropped(), 1, "of no communicator");
        let other = torch.init_rank('b');
        torch.with(c"destroy", other);
        let again = torch.init_rank('c');
        assert_eq!(again, other, "NCCL uses the address again");
        torch.collective(c"all_reduce", again, 1);
        let ended = look(&mut reader).ended;
        assert_eq!(
            ended.last().unwrap().communicator,
            reader.communicators()[2].hash
        );
        assert_eq!((ended.last().unwrap().sequence, reader.faults()), (0, 0));
    });
}

#[test]
fn more_communicators_than_there_is_room_for_are_called_all_the_same() {
    alone(|sandbox| {
        let (torch, nccl) = sandbox.linked();
        for name in 0..80_u8 {
            let comm = torch.init_rank(char::from(name));
            assert_eq!(torch.collective(c"all_reduce", comm, 1), 0);
        }
        assert_eq!(nccl.calls(), 160);
        let mut reader = sandbox.reader();
        assert_eq!(look(&mut reader).ended.len(), 64);
        assert_eq!(
            reader.dropped(),
            32,
            "16 communicators and what they were called for"
        );
    });
}

#[test]
fn kinds_are_those_of_the_model() {
    for (op, name) in [
        (CollectiveOp::BROADCAST, "BROADCAST"),
        (CollectiveOp::ALLREDUCE, "ALLREDUCE"),
        (CollectiveOp::REDUCE, "REDUCE"),
        (CollectiveOp::ALLGATHER_BASE, "ALLGATHER_BASE"),
        (CollectiveOp::REDUCE_SCATTER_BASE, "REDUCE_SCATTER_BASE"),
    ] {
        assert_eq!(op.name(), name);
    }
}
