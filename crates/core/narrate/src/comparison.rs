use model::{ComparedRun, ComparisonNote};

/// Words what could not be compared of two runs.
pub fn comparison_note(note: &ComparisonNote) -> String {
    match note {
        ComparisonNote::OtherRanks { ranks: [a, b] } => {
            format!("A has {a} ranks and B {b}: this alone changes the step time")
        }
        ComparisonNote::OtherCut { cuts: [a, b] } => {
            format!("steps are cut at different points ({a}, {b}): stages may not be comparable")
        }
        ComparisonNote::TooLittle {
            run,
            analysed,
            are_steps,
            needed,
        } => {
            let what = if *are_steps { "steps" } else { "windows" };
            format!(
                "{} has {analysed} analysed {what}, and at least {needed} are needed: train \
                 longer, or compare recordings (--record), in which each step counts",
                letter(*run)
            )
        }
        ComparisonNote::LostRecords { run, records } => {
            format!("{} lost {records} records", letter(*run))
        }
    }
}

fn letter(run: ComparedRun) -> char {
    match run {
        ComparedRun::A => 'A',
        ComparedRun::B => 'B',
    }
}
