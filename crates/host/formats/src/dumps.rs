//! What Flight Recorder dumps of several ranks say together.

use std::collections::{BTreeMap, BTreeSet};

use model::{CollectiveOp, DumpNote, InFlight, Input, SourceNote};
use serde::Deserialize;
use serde_json::Value;

use crate::flight_recorder::{Version, op_of};

/// Ranks that a job is believed to have without a dump of theirs: as many as laggard is tried with.
const MOST_RANKS: u32 = 100_000;
/// Times before are none of a clock that was set: September 2001, in nanoseconds.
const SET_CLOCK_NS: u64 = 1_000_000_000_000_000_000;

/// A Flight Recorder dump.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Dump {
    #[serde(rename = "version")]
    _version: Version,
    entries: Vec<Entry>,
    #[serde(default)]
    pg_config: BTreeMap<String, GroupConfig>,
    #[serde(default)]
    pg_status: BTreeMap<String, GroupStatus>,
}

#[derive(Clone, Debug, Deserialize)]
struct Entry {
    /// Name and description.
    process_group: Vec<String>,
    /// By which the status of its group is given; of no other group of the same rank.
    #[serde(default)]
    pg_id: Value,
    collective_seq_id: u64,
    profiling_name: String,
    #[serde(default)]
    is_p2p: bool,
    #[serde(default)]
    state: String,
    /// Whether nobody waits for it any more.
    #[serde(default)]
    retired: Value,
    #[serde(default)]
    input_sizes: Value,
    #[serde(default)]
    input_dtypes: Value,
    #[serde(default)]
    time_created_ns: Value,
    /// A number if devices are timed.
    #[serde(default)]
    time_discovered_started_ns: Value,
}

#[derive(Clone, Debug, Deserialize)]
struct GroupConfig {
    /// `[0, 1]`, in a string.
    #[serde(default)]
    ranks: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct GroupStatus {
    /// A number in a pickle, the same in a string in JSON; -1 if none or nobody knows.
    #[serde(default)]
    last_completed_collective: Value,
}

/// What the dumps of one rank say of a collective.
#[derive(Clone, Debug)]
struct DumpedCollective {
    op: CollectiveOp,
    /// Its sizes and types.
    detail: String,
    completed: bool,
    in_flight: InFlight,
    /// Whether devices were asked, rather than what the host has noticed of them, which is later.
    is_exact: bool,
}

/// A process group: its name, and which of those that have it.
///
/// Ranks count the groups that `split_group` makes, each for itself: pipelines side by side, each with
/// ranks of its own, all have a group "3".
type Group<'a> = (&'a str, usize);

/// Collectives of one rank by their group and number.
type OfRank<'a> = BTreeMap<(Group<'a>, u64), DumpedCollective>;

/// The members of groups by their name, of each that has it, as far as ranks know more than their own.
struct Configured<'a>(BTreeMap<&'a str, Vec<BTreeSet<u32>>>);

impl<'a> Configured<'a> {
    fn of(dumps: &[(u32, &'a Dump)]) -> Self {
        let mut by_name: BTreeMap<&str, Vec<BTreeSet<u32>>> = BTreeMap::new();
        for (name, config) in dumps.iter().flat_map(|(_, dump)| &dump.pg_config) {
            let mut members: BTreeSet<u32> = config.ranks().collect();
            let known = by_name.entry(name).or_default();
            // What ranks say of one group may differ, yet not in all of its members.
            known.retain(|other| {
                let same = !other.is_disjoint(&members);
                if same {
                    members.extend(other);
                }
                !same
            });
            known.push(members);
        }
        for of_name in by_name.values_mut() {
            of_name.sort();
        }
        Self(by_name)
    }

    /// The group that a rank calls so.
    fn group(&self, name: &'a str, rank: u32) -> Group<'a> {
        let known = self.0.get(name).map_or(&[][..], Vec::as_slice);
        let others = known.iter().take_while(|members| !members.contains(&rank));
        // A rank that no other knows is in the only one, if it is the only one.
        (name, if known.len() < 2 { 0 } else { others.count() })
    }

    /// Each group with its members.
    fn groups(&self) -> impl Iterator<Item = (Group<'a>, &BTreeSet<u32>)> {
        self.0.iter().flat_map(|(name, known)| {
            let numbered = known.iter().enumerate();
            numbered.map(move |(which, members)| ((*name, which), members))
        })
    }
}

impl GroupConfig {
    fn ranks(&self) -> impl Iterator<Item = u32> {
        self.ranks
            .trim_matches(['[', ']'])
            .split(',')
            .filter_map(|rank| rank.trim().parse().ok())
    }
}

impl GroupStatus {
    /// The last collective of the group that is known to have ended, 0 if none is.
    fn ended(&self) -> u64 {
        let number = &self.last_completed_collective;
        number
            .as_u64()
            .or_else(|| number.as_str()?.parse().ok())
            .unwrap_or(0)
    }
}

impl Entry {
    fn group(&self) -> Option<(&str, &str)> {
        // "undefined" is PyTorch's own description of a group that was given none.
        let mut parts = self.process_group.iter().map(String::as_str);
        Some((parts.next()?, parts.next().unwrap_or("undefined")))
    }

    /// Whether it is a collective of the whole group.
    fn counts(&self) -> bool {
        !self.is_p2p && !op_of(&self.profiling_name).is_point_to_point()
    }
}

impl Dump {
    /// Whether the device is in a send or receive that somebody waits for, or is on its way to it.
    ///
    /// Of those that are coalesced only the entry behind them has a state, and without timing none is seen to start.
    fn is_in_transfer(&self) -> bool {
        let transfers = || self.entries.iter().filter(|entry| !entry.counts());
        let is_coalesced = |entry: &Entry| entry.profiling_name.ends_with(":coalesced");
        let coalesces = transfers().any(is_coalesced);
        let is_open = |entry: &Entry| {
            let has_state = is_coalesced(entry) || !coalesces || entry.state == "started";
            has_state && entry.state != "completed" && entry.retired.as_bool() == Some(false)
        };
        transfers().any(is_open)
    }

    /// Whether the recorder would tell if the device had begun a collective.
    fn is_timed(&self) -> bool {
        self.entries
            .iter()
            .filter_map(|entry| entry.time_discovered_started_ns.as_u64())
            // JSON has 0 where a pickle has None.
            // One is enough: devices are timed for a whole process, by TORCH_NCCL_ENABLE_TIMING.
            .any(|at| at > 0)
    }

    fn collective(&self, entry: &Entry, is_timed: bool) -> DumpedCollective {
        // Statuses are given by the number of a group, which a rank counts for itself; entries
        // without the number are of dumps that tell them by name.
        let status = match entry.pg_id.as_u64() {
            Some(id) => self.pg_status.get(&id.to_string()),
            None => entry
                .group()
                .and_then(|(group, _)| self.pg_status.get(group)),
        };
        let ended = status.map_or(0, GroupStatus::ended);
        // A collective that was given up counts as completed in the status alone.
        let completed = entry.state == "completed"
            || entry.state != "started" && ended >= entry.collective_seq_id;
        DumpedCollective {
            op: op_of(&entry.profiling_name),
            detail: format!("{} {}", entry.input_sizes, entry.input_dtypes),
            completed,
            // Gloo's recorder leaves every entry "scheduled", whatever has become of it.
            is_exact: entry.profiling_name.starts_with("nccl"),
            in_flight: match entry.state.as_str() {
                // Who has retired an entry waits for it no more, and the recorder updates it no
                // more.
                _ if completed || entry.retired.as_bool() != Some(false) => InFlight::Unknown,
                "started" => InFlight::Started,
                _ if is_timed => InFlight::NotStarted,
                _ => InFlight::Issued,
            },
        }
    }

    /// When its first and its last entry were made, on a clock that was set.
    fn span(&self) -> Option<[u64; 2]> {
        let times = self.times()?;
        Some([*times.iter().min()?, *times.iter().max()?])
    }

    /// The least and the largest number of its collectives, by group.
    fn numbers(&self) -> BTreeMap<&str, [u64; 2]> {
        let mut numbers: BTreeMap<&str, [u64; 2]> = BTreeMap::new();
        for entry in self.entries.iter().filter(|it| it.counts()) {
            let (Some((group, _)), number) = (entry.group(), entry.collective_seq_id) else {
                continue;
            };
            let [least, largest] = numbers.entry(group).or_insert([number; 2]);
            (*least, *largest) = (number.min(*least), number.max(*largest));
        }
        numbers
    }

    /// Whether its collectives of a group begin with numbers that another dump of the rank has passed.
    fn counts_anew(&self, earlier: &Self) -> bool {
        let before = earlier.numbers();
        self.numbers().iter().any(|(group, [least, _])| {
            let passed = before.get(group);
            passed.is_some_and(|[_, passed]| least <= passed)
        })
    }

    /// When each entry was made, on a clock that was set.
    fn times(&self) -> Option<Vec<u64>> {
        let times = self
            .entries
            .iter()
            .map(|entry| entry.time_created_ns.as_u64())
            .collect::<Option<Vec<u64>>>()?;
        times
            .last()
            // On a clock that begins with a process, equal times of two ranks show no copy.
            .is_some_and(|last| *last > SET_CLOCK_NS)
            .then_some(times)
    }
}

/// Tells what dumps say of a job of which there are also stacks `of_stacks`; the number of groups.
///
/// Of a rank with several dumps what they say together counts. A dump that cannot be of the same
/// moment as the others, or of the rank whose name it has, is left out.
pub(crate) fn tell<'a>(
    dumps: impl Iterator<Item = (u32, &'a Dump)> + Clone,
    of_stacks: impl Iterator<Item = u32>,
    take: &mut dyn FnMut(Input),
) -> u32 {
    let ranks: BTreeSet<u32> = dumps
        .clone()
        .map(|(rank, _)| rank)
        // A rank with a stack and without a dump is waited for as well.
        .chain(of_stacks)
        .collect();
    // First: groups and gaps that a copy seems to show would be of another rank.
    let copied = copied(dumps.clone());
    if !copied.is_empty() {
        let ranks = copied.iter().copied().collect();
        take(Input::Note(SourceNote::Dumps(DumpNote::Copies(ranks))));
    }
    let mut dumps: Vec<(u32, &Dump)> = dumps.filter(|(rank, _)| !copied.contains(rank)).collect();
    if let Some(began) = latest_run(&dumps) {
        let all = dumps.len();
        // Those without times may be of either.
        dumps.retain(|(_, dump)| dump.span().is_none_or(|[_, last]| last >= began));
        let left_out = (all - dumps.len()) as u64;
        take(Input::Note(SourceNote::Dumps(DumpNote::EarlierRun(
            left_out,
        ))));
    }
    let configured = Configured::of(&dumps);
    let (members_of, names) = groups(&dumps, &configured, &ranks);
    let numbers: BTreeMap<Group<'_>, u32> = members_of.keys().copied().zip(0..).collect();
    for (group, members) in &members_of {
        let members = members.iter().copied().collect();
        let (group, name) = (numbers[group], name_of(*group, &names));
        take(Input::Group {
            group,
            name,
            members,
        });
    }
    let transfers = dumps.iter().filter(|(_, dump)| dump.is_in_transfer());
    let transfers: BTreeSet<u32> = transfers.map(|(rank, _)| *rank).collect();
    if !transfers.is_empty() {
        let ranks = transfers.into_iter().collect();
        take(Input::Note(SourceNote::Dumps(DumpNote::InTransfers(ranks))));
    }
    let mut dumped = by_rank(&dumps, &configured);
    leave_out(&mut dumped, &names, take);
    // The default group has all ranks of the job, so it says who is missing.
    let lost: Vec<u32> = names
        .iter()
        .find(|(_, name)| **name == "default_pg")
        .and_then(|(group, _)| members_of.get(group))
        .into_iter()
        .flatten()
        .filter(|rank| !dumped.contains_key(rank))
        .copied()
        .collect();
    if !lost.is_empty() {
        take(Input::Note(SourceNote::Dumps(DumpNote::Missing(lost))));
    }
    let ended = ended(&dumped);
    for (rank, collectives) in dumped {
        for ((group, number), collective) in &collectives {
            let (group, number) = (*group, *number);
            // What was issued after it, or has ended elsewhere, says that it has ended too.
            let after = collectives
                .range((group, number.saturating_add(1))..)
                .next();
            let is_last = after.is_none_or(|((other, _), _)| *other != group);
            let is_over = ended.get(&group).is_some_and(|(last, _)| *last >= number);
            let DumpedCollective {
                op,
                detail,
                completed,
                mut in_flight,
                is_exact,
            } = collective.clone();
            if !is_exact && (!is_last || is_over) {
                in_flight = InFlight::Unknown;
            }
            let (group, op) = (numbers[&group], op.name().to_owned());
            take(Input::Entered {
                rank,
                group,
                number,
                op,
                detail,
                completed,
                in_flight,
            });
        }
    }
    numbers.len() as u32
}

/// When the latest of several runs had begun, if a rank has dumps of more than one: the later begins behind
/// the end of the earlier, and counts anew.
fn latest_run(dumps: &[(u32, &Dump)]) -> Option<u64> {
    let spans = dumps
        .iter()
        .filter_map(|(rank, dump)| Some((*rank, *dump, dump.span()?)));
    let mut spans: Vec<(u32, &Dump, [u64; 2])> = spans.collect();
    spans.sort_by_key(|(rank, _, [first, _])| (*rank, *first));
    let mut began: BTreeMap<u32, u64> = BTreeMap::new();
    for pair in spans.windows(2) {
        if let [(rank, earlier, [_, ended]), (other, later, [first, _])] = pair
            && rank == other
            && first > ended
            && later.counts_anew(earlier)
        {
            began.insert(*rank, *first);
        }
    }
    // Ranks begin a run one after the other.
    began.into_values().min()
}

/// Leaves out dumps that cannot be of the same moment as the others, each with a note.
fn leave_out(
    dumped: &mut BTreeMap<u32, OfRank<'_>>,
    names: &BTreeMap<Group<'_>, &str>,
    take: &mut dyn FnMut(Input),
) {
    // First: beside the dump of a longer run that has ended, those of this run would all look old.
    for (rank, group, number) in further(dumped) {
        if let Some(further) = dumped.remove(&rank) {
            take(Input::Note(SourceNote::Dumps(DumpNote::Further {
                rank,
                op: further[&(group, number)].op,
                number,
                group: name_of(group, names),
            })));
        }
    }
    // An old dump lacks collectives that its rank has entered since: it would be named for them.
    let earlier = earlier(dumped);
    for (rank, group, number, of) in &earlier {
        take(Input::Note(SourceNote::Dumps(DumpNote::Old {
            rank: *rank,
            // Both keys are there: `earlier` takes them from `dumped`, which is unchanged since.
            op: dumped[of][&(*group, *number)].op,
            number: *number,
            group: name_of(*group, names),
            ended_on: *of,
        })));
    }
    // After all notes: each of two dumps may lack what has ended in the other, if they are of two
    // runs.
    for (rank, ..) in earlier {
        dumped.remove(&rank);
    }
}

/// Members and descriptions of groups, by their names.
type Groups<'a> = (
    BTreeMap<Group<'a>, BTreeSet<u32>>,
    BTreeMap<Group<'a>, &'a str>,
);

/// The groups that dumps tell of, in a job that has `ranks`.
fn groups<'a>(
    dumps: &[(u32, &'a Dump)],
    configured: &Configured<'a>,
    ranks: &BTreeSet<u32>,
) -> Groups<'a> {
    let mut groups: BTreeMap<Group<'_>, BTreeSet<u32>> = BTreeMap::new();
    let mut names: BTreeMap<Group<'_>, &str> = BTreeMap::new();
    for (rank, dump) in dumps {
        for (group, name) in dump.entries.iter().filter_map(Entry::group) {
            let group = configured.group(group, *rank);
            groups.entry(group).or_default().insert(*rank);
            names.insert(group, name);
        }
    }
    // Gloo tells of one group without a name, which is none of those in the entries: its members
    // are at least ranks of the job.
    let known = configured.groups().flat_map(|(_, members)| members);
    // All of a job are in its default group, also those without a dump.
    let last = ranks
        .iter()
        .chain(known)
        .max()
        // One damaged number would fill the group with billions of ranks.
        .filter(|last| **last < MOST_RANKS);
    for (group, members) in &mut groups {
        if names.get(group) == Some(&"default_pg") {
            members.extend(ranks);
            members.extend(last.into_iter().flat_map(|last| 0..=*last));
        }
    }
    for (group, members) in configured.groups() {
        if let Some(known) = groups.get_mut(&group) {
            known.extend(members);
        }
    }
    (groups, names)
}

fn name_of(group: Group<'_>, names: &BTreeMap<Group<'_>, &str>) -> String {
    match names.get(&group) {
        Some(name) if *name != "undefined" => name.trim_end_matches("_pg").to_owned(),
        _ => format!("group_{}", group.0),
    }
}

/// What the dumps of each rank say together.
fn by_rank<'a>(
    dumps: &[(u32, &'a Dump)],
    configured: &Configured<'a>,
) -> BTreeMap<u32, OfRank<'a>> {
    let mut of_ranks: BTreeMap<u32, OfRank<'_>> = BTreeMap::new();
    for (rank, dump) in dumps {
        let is_timed = dump.is_timed();
        let of_rank = of_ranks.entry(*rank).or_default();
        for entry in dump.entries.iter().filter(|entry| entry.counts()) {
            let Some((group, _)) = entry.group() else {
                continue;
            };
            let group = configured.group(group, *rank);
            let new = dump.collective(entry, is_timed);
            // Of two dumps the one that knows of its end is the later one.
            of_rank
                .entry((group, entry.collective_seq_id))
                .and_modify(|known| {
                    if !known.completed {
                        *known = new.clone();
                    }
                })
                .or_insert(new);
        }
    }
    of_ranks
}

/// Ranks whose dump has the same entries, made at the same nanoseconds, as that of another rank.
fn copied<'a>(dumps: impl Iterator<Item = (u32, &'a Dump)>) -> BTreeSet<u32> {
    let mut ranks: BTreeMap<Vec<u64>, BTreeSet<u32>> = BTreeMap::new();
    for (rank, dump) in dumps {
        if let Some(times) = dump.times() {
            ranks.entry(times).or_default().insert(rank);
        }
    }
    ranks
        .into_values()
        // Equal dumps of a single rank are one rank in the set, and no copies of another's.
        .filter(|ranks| ranks.len() > 1)
        .flatten()
        .collect()
}

impl DumpedCollective {
    /// Whether it has ended and does so on no rank before all have entered it: a broadcast ends on
    /// its root before others have, and so proves nothing.
    fn joined_all(&self) -> bool {
        self.completed && self.op.joins_all()
    }
}

/// The last collective of each group that has ended on some rank and does so on none before all
/// have entered it, with that rank.
fn ended<'a>(by_rank: &BTreeMap<u32, OfRank<'a>>) -> BTreeMap<Group<'a>, (u64, u32)> {
    let mut ended: BTreeMap<Group<'_>, (u64, u32)> = BTreeMap::new();
    for (rank, collectives) in by_rank {
        for ((group, number), collective) in collectives {
            if !collective.joined_all() {
                continue;
            }
            let known = ended.entry(*group).or_default();
            if *number > known.0 {
                *known = (*number, *rank);
            }
        }
    }
    ended
}

/// The last collective that each rank has entered in each group.
fn last<'a>(by_rank: &BTreeMap<u32, OfRank<'a>>) -> BTreeMap<(Group<'a>, u32), u64> {
    let mut last: BTreeMap<(Group<'_>, u32), u64> = BTreeMap::new();
    for (rank, collectives) in by_rank {
        last.extend(
            collectives
                .keys()
                .map(|(group, number)| ((*group, *rank), *number)),
        );
    }
    last
}

/// Ranks on which a collective has ended that more than half of its group have not entered by their
/// dumps, with the collective. Half and half, those that came further are the later ones.
fn further<'a>(by_rank: &BTreeMap<u32, OfRank<'a>>) -> Vec<(u32, Group<'a>, u64)> {
    let mut of_groups: BTreeMap<Group<'_>, Vec<u64>> = BTreeMap::new();
    for ((group, _), last) in last(by_rank) {
        of_groups.entry(group).or_default().push(last);
    }
    for last in of_groups.values_mut() {
        last.sort_unstable();
    }
    let most = |group: Group<'_>| of_groups.get(&group).map_or(0, |last| last[last.len() / 2]);
    by_rank
        .iter()
        .filter_map(|(rank, collectives)| {
            let ((group, number), _) =
                collectives.iter().find(|((group, number), collective)| {
                    collective.joined_all() && *number > most(*group)
                })?;
            Some((*rank, *group, *number))
        })
        .collect()
}

/// Ranks whose dump is from before a moment at which they entered a collective: it has ended on
/// another rank, which it does not before all are in it. With the collective and that rank.
fn earlier<'a>(by_rank: &BTreeMap<u32, OfRank<'a>>) -> Vec<(u32, Group<'a>, u64, u32)> {
    let ended = ended(by_rank);
    let mut found: Vec<(u32, Group<'_>, u64, u32)> = Vec::new();
    for ((group, rank), last) in last(by_rank) {
        let (number, of) = ended.get(&group).copied().unwrap_or_default();
        // One group proves that a dump is old; the note on it need not list all.
        if last < number && found.iter().all(|(known, ..)| *known != rank) {
            found.push((rank, group, number, of));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use model::Ranks;
    use serde_json::json;

    use super::*;

    /// The dump of a rank that has entered so many all-reduces of each group, all of which have
    /// ended or all but the last.
    fn dump(groups: &[(&str, u64, bool)]) -> Dump {
        let entries: Vec<Value> = groups
            .iter()
            .flat_map(|&(group, last, has_ended)| {
                (1..=last).map(move |number| {
                    let completed = number < last || has_ended;
                    let state = if completed { "completed" } else { "scheduled" };
                    json!({"process_group": [group, group], "collective_seq_id": number,
                           "profiling_name": "nccl:all_reduce", "state": state})
                })
            })
            .collect();
        dump_of(&entries)
    }

    fn dump_of(entries: &[Value]) -> Dump {
        serde_json::from_value(json!({"version": "2.5", "entries": entries})).unwrap()
    }

    /// The notes about dumps, and the ranks whose collectives are read.
    fn read(dumps: &[Dump]) -> (Vec<DumpNote>, BTreeSet<u32>) {
        let (mut notes, mut ranks) = (Vec::new(), BTreeSet::new());
        tell((0..).zip(dumps), [].into_iter(), &mut |input| match input {
            Input::Note(SourceNote::Dumps(note)) => notes.push(note),
            Input::Entered { rank, .. } => _ = ranks.insert(rank),
            _ => {}
        });
        (notes, ranks)
    }

    #[test]
    fn of_two_runs_of_which_each_lacks_what_ended_in_the_other_nothing_is_read() {
        let dumps = [
            dump(&[("a", 4, true), ("b", 5, true)]),
            dump(&[("a", 5, true), ("b", 4, true)]),
        ];
        let (notes, ranks) = read(&dumps);
        assert_eq!((notes.len(), ranks), (2, BTreeSet::new()), "{notes:?}");
    }

    #[test]
    fn of_transfers_that_are_coalesced_the_entry_behind_them_has_a_state() {
        let is_in_transfer = |entries: &[(&str, &str)]| {
            let entries: Vec<Value> = entries
                .iter()
                .map(|(name, state)| {
                    json!({"process_group": ["pp", "pp"], "collective_seq_id": 0, "profiling_name": name,
                           "state": state, "is_p2p": true, "retired": *state == "completed"})
                })
                .collect();
            let dump = dump_of(&entries);
            let (notes, _) = read(&[dump]);
            notes == [DumpNote::InTransfers(vec![0])]
        };
        // Nothing is seen to start without timing.
        assert!(is_in_transfer(&[("nccl:recv 0<-1", "scheduled")]));
        assert!(is_in_transfer(&[("nccl:recv 0<-1", "started")]));
        assert!(!is_in_transfer(&[("nccl:recv 0<-1", "completed")]));
        let batch = |state| [("nccl:recv 0<-1", "scheduled"), ("nccl:coalesced", state)];
        assert!(is_in_transfer(&batch("scheduled")));
        assert!(!is_in_transfer(&batch("completed")));
    }

    /// The ranks whose collectives are read where each has a dump of two runs, an hour apart, of which the
    /// second came to this collective, and numbered its first like this.
    fn of_two_runs(first: u64, last: u64) -> (Vec<DumpNote>, BTreeSet<u32>) {
        let run = |rank: u32, hour: u64, numbers: std::ops::RangeInclusive<u64>| -> Dump {
            let began = SET_CLOCK_NS + hour * 3_600_000_000_000 + 1000 * u64::from(rank);
            let entry = |number: u64| {
                json!({"process_group": ["a", "a"], "collective_seq_id": number,
                       "profiling_name": "nccl:all_reduce", "state": "completed",
                       "time_created_ns": began + 1_000_000 * number})
            };
            let entries: Vec<Value> = numbers.map(entry).collect();
            serde_json::from_value(json!({"version": "2.5", "entries": entries})).unwrap()
        };
        let dumps: Vec<(u32, Dump)> = (0..2)
            .flat_map(|rank| {
                [(1, 1..=20), (2, first..=last)]
                    .map(|(hour, numbers)| (rank, run(rank, hour, numbers)))
            })
            .collect();
        let (mut notes, mut entered) = (Vec::new(), BTreeSet::new());
        let dumps = dumps.iter().map(|(rank, dump)| (*rank, dump));
        tell(dumps, [].into_iter(), &mut |input| match input {
            Input::Note(SourceNote::Dumps(note)) => notes.push(note),
            Input::Entered { number, .. } => _ = entered.insert(number as u32),
            _ => {}
        });
        (notes, entered)
    }

    #[test]
    fn of_two_runs_the_latest_counts() {
        let (notes, entered) = of_two_runs(1, 12);
        assert_eq!(notes, [DumpNote::EarlierRun(2)]);
        assert_eq!(entered.last(), Some(&12));
        // A later dump of one run goes on.
        let (notes, entered) = of_two_runs(21, 40);
        assert_eq!((notes, entered.len()), (Vec::new(), 40));
    }

    #[test]
    fn groups_of_one_name_are_told_apart_by_their_members() {
        let dumps: Vec<Dump> = (0..4)
            .map(|rank| {
                let (members, last) = if rank < 2 {
                    ("[0, 1]", 9)
                } else {
                    ("[2, 3]", 4)
                };
                let mut dump = dump(&[("3", last, true)]);
                let config = GroupConfig {
                    ranks: members.to_owned(),
                };
                dump.pg_config.insert("3".to_owned(), config);
                dump
            })
            .collect();
        assert_eq!(read(&dumps), (vec![], [0, 1, 2, 3].into()));
        let mut groups = Vec::new();
        let numbered = (0..).zip(&dumps);
        tell(numbered, [].into_iter(), &mut |input| {
            if let Input::Group { members, .. } = input {
                groups.push(members);
            }
        });
        assert_eq!(groups, [Ranks::from([0, 1]), Ranks::from([2, 3])]);
    }

    #[test]
    fn a_dump_of_a_longer_run_leaves_those_of_this_one_in() {
        let mut dumps = vec![dump(&[("a", 5, false), ("b", 3, true)]); 3];
        dumps.push(dump(&[("a", 90, true), ("b", 2, true)]));
        let (notes, ranks) = read(&dumps);
        assert_eq!(ranks, [0, 1, 2].into(), "{notes:?}");
        assert_eq!(
            notes,
            [DumpNote::Further {
                rank: 3,
                op: CollectiveOp::ALLREDUCE,
                number: 6,
                group: "a".to_owned(),
            }]
        );
    }

    #[test]
    fn a_dump_that_is_older_than_the_others_is_left_out() {
        let mut dumps = vec![dump(&[("a", 5, true)]); 2];
        dumps.push(dump(&[("a", 4, true)]));
        let (notes, ranks) = read(&dumps);
        assert_eq!(ranks, [0, 1].into());
        assert!(
            matches!(notes[..], [DumpNote::Old { rank: 2, .. }]),
            "{notes:?}"
        );
        // Of two it is the one that came less far.
        assert_eq!(read(&dumps[1..]).1, [0].into());
    }
}
