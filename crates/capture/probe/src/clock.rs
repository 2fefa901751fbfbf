use model::RankNs;

/// The host's monotonic clock, exact; about 90 ns where the clock is virtual.
#[inline]
pub fn now() -> RankNs {
    read(libc::CLOCK_MONOTONIC)
}

/// The same clock at its last tick, 1 to 4 ms old; about 20 ns anywhere.
#[inline]
pub fn coarse() -> RankNs {
    read(libc::CLOCK_MONOTONIC_COARSE)
}

#[inline]
fn read(clock: libc::clockid_t) -> RankNs {
    let mut at = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `at` is a valid place to write to; both clocks exist on every Linux.
    unsafe { libc::clock_gettime(clock, &raw mut at) };
    RankNs(
        (at.tv_sec as u64)
            .wrapping_mul(1_000_000_000)
            .wrapping_add(at.tv_nsec as u64),
    )
}
