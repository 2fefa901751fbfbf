//! What ranks send to other hosts over TCP and how fast it goes, as the kernel counts it.

use std::collections::BTreeMap;
use std::io;
use std::mem;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use collective::{Counted, Lost};
use model::{Input, NetworkFault, RankNs};
use netlink_packet_core::{
    NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_sock_diag::SockDiagMessage;
use netlink_packet_sock_diag::constants::{AF_INET, AF_INET6, IPPROTO_TCP};
use netlink_packet_sock_diag::inet::nlas::Nla;
use netlink_packet_sock_diag::inet::{
    ExtensionFlags, InetRequest, InetResponse, SocketId, StateFlags,
};
use netlink_sys::protocols::NETLINK_SOCK_DIAG;
use netlink_sys::{Socket, SocketAddr};

use crate::slowing::WatchedLink;
use crate::sockets::sockets_of;

/// How often counters are read, if reading them takes less than this share of the time.
const READ_EVERY: Duration = Duration::from_secs(1);
const READ_SHARE: u32 = 100;
/// How often it is looked which sockets ranks have.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// Part of the usual bandwidth below which a link is slow. Ours: what TCP carries swings by more
/// than MegaTrace's fifth.
const SLOW_RATIO: f64 = 0.5;
/// Links of a host that are watched.
const MAX_LINKS: usize = 256;

/// The links of the ranks of one job on this host, each to another host.
#[derive(Debug, Default)]
pub(crate) struct LinkFeed {
    kernel: Option<Socket>,
    sockets: BTreeMap<u64, u32>,
    looked: Option<Instant>,
    next: Option<Instant>,
    links: BTreeMap<IpAddr, WatchedLink>,
    /// What was read last: of each connection, and in total for each host.
    connections: BTreeMap<Cookie, SocketCounts>,
    sent: BTreeMap<IpAddr, SentToHost>,
}

/// By which the kernel knows a socket for as long as it runs; inodes are used again.
type Cookie = [u8; 8];

/// A connection of a rank to another host.
#[derive(Clone, Copy, Debug)]
struct RankConnection {
    cookie: Cookie,
    rank: u32,
    peer: IpAddr,
    counts: SocketCounts,
}

/// What the kernel has counted of a connection.
#[derive(Clone, Copy, Debug, Default)]
struct SocketCounts {
    /// Segments; this one goes round.
    delivered: u32,
    unacknowledged: u32,
    bytes: u64,
    busy_ns: u64,
}

/// What was sent to one host by now.
#[derive(Clone, Copy, Debug, Default)]
struct SentToHost {
    rank: u32,
    counted: Counted,
}

impl LinkFeed {
    /// Reads the counters of what `ranks` have sent, if it is time, and tells of links that carry
    /// much less than they used to.
    pub(crate) fn poll(
        &mut self,
        asked: Instant,
        now: RankNs,
        ranks: impl Iterator<Item = (u32, u32)>,
        take: &mut dyn FnMut(Input),
    ) {
        if self.next.is_some_and(|next| asked < next) {
            return;
        }
        if self
            .looked
            .is_none_or(|looked| asked.duration_since(looked) >= LOOK_EVERY)
        {
            self.looked = Some(asked);
            self.sockets = ranks
                .flat_map(|(rank, pid)| sockets_of(pid).into_iter().map(move |inode| (inode, rank)))
                .collect();
        }
        let began = Instant::now();
        let found = self.read();
        let pause = READ_EVERY.max(began.elapsed().saturating_mul(READ_SHARE));
        self.next = Some(asked + pause);
        // A reading that failed says nothing of the links, and what is usual for them stays.
        if let Ok(found) = found {
            self.compare(asked, now, &found, take);
        }
    }

    /// Tells of links that carry much less than they used to.
    fn compare(
        &mut self,
        asked: Instant,
        now: RankNs,
        found: &[RankConnection],
        take: &mut dyn FnMut(Input),
    ) {
        self.count(now, found);
        // A host without a connection is forgotten, and with it what was usual.
        self.links.retain(|peer, _| self.sent.contains_key(peer));
        for (peer, SentToHost { rank, counted }) in &self.sent {
            if self.links.len() >= MAX_LINKS && !self.links.contains_key(peer) {
                continue;
            }
            let link = self.links.entry(*peer).or_default();
            if let Some(Lost {
                bytes_per_s,
                usual_bytes_per_s,
            }) = link.read(asked, *counted, SLOW_RATIO)
            {
                let fault = NetworkFault::SlowerLink {
                    peer: peer.to_string(),
                    bytes_per_s: bytes_per_s as u64,
                    usual_bytes_per_s: usual_bytes_per_s as u64,
                };
                take(Input::Network { rank: *rank, fault });
            }
        }
    }

    /// Adds what connections have carried since they were read last to what was sent to each host.
    /// In this way nothing shrinks where one of several connections ends, or a count goes round.
    fn count(&mut self, at: RankNs, found: &[RankConnection]) {
        let before = mem::take(&mut self.connections);
        let sent_before = mem::take(&mut self.sent);
        for connection in found {
            let RankConnection {
                cookie,
                rank,
                peer,
                counts,
            } = *connection;
            // NCCL and gloo open several connections to a peer: together they are the link.
            let link = self.sent.entry(peer).or_insert_with(|| {
                let before = sent_before.get(&peer).copied().unwrap_or_default().counted;
                let posted = before.completed;
                let counted = Counted {
                    at,
                    posted,
                    ..before
                };
                SentToHost { rank, counted }
            });
            let before = before.get(&cookie).copied().unwrap_or_default();
            let delivered = u64::from(counts.delivered.wrapping_sub(before.delivered));
            let counted = &mut link.counted;
            counted.completed += delivered;
            counted.posted += delivered + u64::from(counts.unacknowledged);
            counted.bytes += counts.bytes.saturating_sub(before.bytes);
            counted.busy_ns += counts.busy_ns.saturating_sub(before.busy_ns);
            self.connections.insert(cookie, counts);
        }
    }

    /// The connections of ranks to other hosts.
    fn read(&mut self) -> io::Result<Vec<RankConnection>> {
        let mut connections = Vec::new();
        if self.sockets.is_empty() {
            return Ok(connections);
        }
        let kernel = match self.kernel.take() {
            Some(kernel) => kernel,
            None => open()?,
        };
        for (family, id) in [
            (AF_INET, SocketId::new_v4()),
            (AF_INET6, SocketId::new_v6()),
        ] {
            dump(&kernel, family, id, |found| {
                let rank = self.sockets.get(&u64::from(found.header.inode));
                let id = &found.header.socket_id;
                // IPv4 in an IPv6 socket is the same host.
                let peer = id.destination_address.to_canonical();
                if peer == id.source_address.to_canonical() || peer.is_loopback() {
                    return;
                }
                if let (Some(rank), Some(counts)) = (rank, counts(found)) {
                    connections.push(RankConnection {
                        cookie: id.cookie,
                        rank: *rank,
                        peer,
                        counts,
                    });
                }
            })?;
        }
        // One that failed may have answers left in it, and is opened anew.
        self.kernel = Some(kernel);
        Ok(connections)
    }
}

fn open() -> io::Result<Socket> {
    let mut socket = Socket::new(NETLINK_SOCK_DIAG)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    // The kernel answers at once; nothing here waits if it does not.
    socket.set_non_blocking(true)?;
    Ok(socket)
}

/// Asks for all connections of a family.
fn dump(
    kernel: &Socket,
    family: u8,
    socket_id: SocketId,
    mut each: impl FnMut(&InetResponse),
) -> io::Result<()> {
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | NLM_F_DUMP;
    let request = InetRequest {
        family,
        protocol: IPPROTO_TCP,
        // `INET_DIAG_INFO`: without it the kernel answers with addresses and no counters.
        extensions: ExtensionFlags::INFO,
        states: StateFlags::ESTABLISHED,
        socket_id,
    };
    let mut message = NetlinkMessage::new(header, SockDiagMessage::InetRequest(request).into());
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    kernel.send(&bytes, 0)?;
    let mut answer = Vec::with_capacity(1 << 15);
    loop {
        answer.clear();
        kernel.recv(&mut answer, 0)?;
        let mut rest = &answer[..];
        while !rest.is_empty() {
            let message = NetlinkMessage::<SockDiagMessage>::deserialize(rest)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            match message.payload {
                NetlinkPayload::InnerMessage(SockDiagMessage::InetResponse(found)) => {
                    each(&found);
                }
                NetlinkPayload::Done(_) => return Ok(()),
                NetlinkPayload::Error(error) => return Err(error.to_io()),
                _ => {}
            }
            // Messages begin at multiples of four bytes.
            let length = (message.header.length as usize).next_multiple_of(4);
            rest = rest.get(length.max(4)..).unwrap_or_default();
        }
    }
}

/// What a connection has counted, if its kernel is of 4.10 or later.
///
/// Places are those of `struct tcp_info` in `linux/tcp.h`, which only grows at its end. While its
/// peer takes no more, a connection does not count as busy: that is nothing of the network.
fn counts(found: &InetResponse) -> Option<SocketCounts> {
    let info = found.nlas.iter().find_map(|nla| match nla {
        Nla::TcpInfo(info) => Some(info),
        _ => None,
    })?;
    let us_busy = u64::from_ne_bytes(field(info, 168)?);
    let us_refused = u64::from_ne_bytes(field(info, 176)?);
    Some(SocketCounts {
        delivered: u32::from_ne_bytes(field(info, 192)?),
        unacknowledged: u32::from_ne_bytes(field(info, 24)?),
        bytes: u64::from_ne_bytes(field(info, 120)?),
        busy_ns: us_busy.saturating_sub(us_refused).saturating_mul(1000),
    })
}

fn field<const BYTES: usize>(info: &[u8], at: usize) -> Option<[u8; BYTES]> {
    info.get(at..)?.first_chunk().copied()
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn what_a_connection_has_carried_is_read_from_the_kernel() {
        const BYTES: usize = 1 << 20;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        let reads = std::thread::spawn(move || {
            let mut read = vec![0; BYTES];
            peer.read_exact(&mut read).map(|()| peer)
        });
        stream.write_all(&vec![7; BYTES]).unwrap();
        let _peer = reads.join().unwrap().unwrap();
        let own = sockets_of(std::process::id());
        let port = stream.local_addr().unwrap().port();
        let mut found = Vec::new();
        dump(&open().unwrap(), AF_INET, SocketId::new_v4(), |response| {
            let is_own = own.contains(&u64::from(response.header.inode));
            if is_own && response.header.socket_id.source_port == port {
                found.push(counts(response).unwrap());
            }
        })
        .unwrap();
        let [counts] = &found[..] else {
            panic!("{found:?}")
        };
        assert!(
            (BYTES as u64..=BYTES as u64 + 1).contains(&counts.bytes),
            "{counts:?}"
        );
        assert!(
            counts.delivered > 0 && counts.unacknowledged == 0,
            "{counts:?}"
        );
    }

    #[test]
    fn what_was_usual_outlives_a_connection_and_a_count_that_goes_round() {
        const SECOND_NS: u64 = 1_000_000_000;
        let (peer, began) = (IpAddr::from([10, 0, 0, 2]), Instant::now());
        let (mut feed, mut at_s, mut bytes) = (LinkFeed::default(), 0, 0);
        // All connections carry the same. Returns how many slow links are reported.
        let mut carry = |connections: &[u8], seconds: u64, bytes_per_s: u64| {
            let mut reported = 0;
            for _ in 0..seconds {
                at_s += 1;
                bytes += bytes_per_s;
                let counts = SocketCounts {
                    delivered: (u32::MAX - 500).wrapping_add(100 * at_s as u32),
                    unacknowledged: 2,
                    bytes,
                    busy_ns: at_s * SECOND_NS,
                };
                let of = |cookie: &u8| RankConnection {
                    cookie: [*cookie; 8],
                    rank: 3,
                    peer,
                    counts,
                };
                let found: Vec<RankConnection> = connections.iter().map(of).collect();
                let asked = began + Duration::from_secs(at_s);
                feed.compare(asked, RankNs(at_s * SECOND_NS), &found, &mut |_| {
                    reported += 1;
                });
                let in_flight = feed.sent[&peer].counted.in_flight();
                assert_eq!(in_flight, 2 * connections.len() as u64);
            }
            reported
        };
        assert_eq!(carry(&[1, 2, 3], 10, 1000), 0);
        // One ends, and the link goes on as it was.
        assert_eq!(carry(&[1, 2], 2, 1000), 0);
        assert_eq!(carry(&[1, 2], 5, 10), 1);
    }
}
