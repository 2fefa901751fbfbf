//! What steps take with and without faults.

use anyhow::{Context, Result};

use super::Lab;
use super::ahead::{command, seconds_behind};

/// Steps of a turn in which the same faults strike. Of these 50 count, which two pauses strike.
const TURN_STEPS: usize = 55;
/// How often each set of faults has a turn.
const TURNS: usize = 2;

/// What a step of a loop takes with each set of faults, in seconds: one job, in which these strike in turn.
/// Step times of one process scatter less than those of several. No laggard looks on: a profile takes time,
/// and takes it of the faults that call for one.
pub(super) fn in_turn(
    lab: &Lab,
    script: &str,
    family: &[(&str, &str)],
    sets: &[String],
) -> Result<Vec<f64>> {
    let (faults, turn) = (sets.join("/"), TURN_STEPS.to_string());
    let steps = (TURNS * sets.len() * TURN_STEPS + 1).to_string();
    let own = [
        ("FAULT", faults.as_str()),
        ("TURN", &turn),
        ("STEPS", &steps),
    ];
    let (said, _) = lab.outputs("env", &command(lab, script, &[&own[..], family].concat()))?;
    let took_s = |set: &String| seconds_behind(&format!("with {set} a step took "), &said);
    let took_s: Option<Vec<f64>> = sets.iter().map(took_s).collect();
    took_s.context("the job did not say what a step took with each set of faults")
}
