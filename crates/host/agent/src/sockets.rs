//! TCP sockets of a process that hold what nobody acknowledges, by `/proc`.

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use model::NetworkFault;

/// Sockets of one process that are named, the fullest.
const MAX_REPORTED: usize = 4;
/// The state of a connection that stands.
const ESTABLISHED: &str = "01";
/// What its timer waits for: an acknowledgement, or that the peer takes more.
const RESENDS: &str = "01";
const PROBES: &str = "04";

/// The sockets of a process with bytes that were sent again, or that the peer does not take.
pub(crate) fn stuck_sockets(pid: u32) -> Vec<NetworkFault> {
    let own = sockets_of(pid);
    // By way of the process, which may be in a network namespace of its own. The tables have all
    // sockets of that namespace.
    let mut stuck: Vec<(u64, NetworkFault)> = ["tcp", "tcp6"]
        .into_iter()
        .filter_map(|name| fs::read_to_string(format!("/proc/{pid}/net/{name}")).ok())
        .flat_map(|table| table.lines().skip(1).filter_map(entry).collect::<Vec<_>>())
        .filter(|(inode, _)| own.contains(inode))
        .map(|(_, stuck)| stuck)
        .collect();
    stuck.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
    stuck
        .into_iter()
        .take(MAX_REPORTED)
        .map(|(_, fault)| fault)
        .collect()
}

/// Inodes of a process's sockets.
pub(crate) fn sockets_of(pid: u32) -> BTreeSet<u64> {
    fs::read_dir(format!("/proc/{pid}/fd"))
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|file| fs::read_link(file.path()).ok())
        .filter_map(|link| {
            let inode = link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?;
            inode.parse().ok()
        })
        .collect()
}

/// A line of the kernel's table, if its socket is stuck: its inode, bytes and what to tell.
fn entry(line: &str) -> Option<(u64, (u64, NetworkFault))> {
    let mut fields = line.split_ascii_whitespace();
    // Columns: number, own address, peer, state, queues, timer, sent again, user, timeout, inode.
    let (peer, state) = (fields.nth(2)?, fields.next()?);
    let (queue, _) = fields.next()?.split_once(':')?;
    let (timer, _) = fields.next()?.split_once(':')?;
    let resent = u32::from_str_radix(fields.next()?, 16).ok()?;
    let inode = fields.nth(2)?.parse().ok()?;
    let bytes = u64::from_str_radix(queue, 16).ok()?;
    let refused = timer == PROBES;
    let stuck = bytes > 0 && (refused || timer == RESENDS && resent > 0);
    if state != ESTABLISHED || !stuck {
        return None;
    }
    let peer = address(peer)?.to_string();
    Some((
        inode,
        (
            bytes,
            NetworkFault::Socket {
                peer,
                bytes,
                resent,
                refused,
            },
        ),
    ))
}

/// An address as the table has it: words of the machine's byte order, and the port.
fn address(text: &str) -> Option<SocketAddr> {
    let (host, port) = text.split_once(':')?;
    let mut bytes = Vec::with_capacity(16);
    for at in (0..host.len()).step_by(8) {
        let word = u32::from_str_radix(host.get(at..at + 8)?, 16).ok()?;
        bytes.extend(word.to_ne_bytes());
    }
    let ip = match bytes.len() {
        4 => IpAddr::from(<[u8; 4]>::try_from(bytes).ok()?),
        _ => Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).to_canonical(),
    };
    Some(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    #[cfg(target_endian = "little")]
    fn a_line_of_the_kernel_s_table_is_read() {
        let line = "   1: 0100007F:9C40 0200000A:733C 01 00200000:00000000 01:00000014 \
            00000004  1000        0 31337 2 0000000000000000 20 4 30 10 -1";
        let (inode, (bytes, fault)) = entry(line).unwrap();
        assert_eq!((inode, bytes), (31337, 2 << 20));
        let peer = "10.0.0.2:29500".to_owned();
        let socket = NetworkFault::Socket {
            peer,
            bytes,
            resent: 4,
            refused: false,
        };
        assert_eq!(fault, socket);
        assert_eq!(
            entry(&line.replace("01:00000014 00000004", "01:00000014 00000000")),
            None
        );
        assert_eq!(
            entry(&line.replace(" 01 0020", " 0A 0020")),
            None,
            "it listens"
        );
        assert_eq!(
            entry(&line.replace("00200000", "00000000")),
            None,
            "all is acknowledged"
        );
        assert_eq!(entry("  sl  local_address rem_address   st tx_queue"), None);
        let mapped = "0000000000000000FFFF00000200000A:733C";
        assert_eq!(address(mapped).unwrap().to_string(), "10.0.0.2:29500");
    }

    #[test]
    fn a_socket_nobody_reads_is_reported() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let _peer = listener.accept().unwrap();
        stream.set_nonblocking(true).unwrap();
        let began = Instant::now();
        let reported = loop {
            // Until all buffers are full, and the peer's host has said so.
            while stream.write(&[0; 1 << 12]).is_ok() {}
            let reported = stuck_sockets(std::process::id());
            if !reported.is_empty() || began.elapsed() > Duration::from_secs(20) {
                break reported;
            }
            std::thread::yield_now();
        };
        let peer = listener.local_addr().unwrap().to_string();
        let is_reported = reported.iter().any(|fault| {
            matches!(fault, NetworkFault::Socket { peer: found, refused: true, .. }
                if *found == peer)
        });
        assert!(is_reported, "{reported:?}");
    }
}
