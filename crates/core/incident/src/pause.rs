//! Waits that are known to take long and to end: a rank that writes a checkpoint, compiles,
//! evaluates or downloads does not hang.
//!
//! A name alone misleads: activation checkpointing is a forward pass, code that `torch.compile`
//! made runs below its frames, and a loop called `train_and_evaluate` is the whole job. So words
//! of function names count, whole and never those of paths, and files only where nothing else
//! runs below them.

use model::{Frame, PauseKind, ProcessState, Stack};

/// Functions in which jobs pause.
struct Pause {
    /// Parts of the file's path; anywhere if there is none.
    places: &'static [&'static str],
    /// One of these is a word of the function's name; any name if there is none.
    words: &'static [&'static str],
    /// And one of these.
    and: &'static [&'static str],
    /// What it does.
    what: PauseKind,
}

const EVERYWHERE: &[&str] = &[];
const ANY: &[&str] = &[];
const CHECKPOINT: &[&str] = &["checkpoint", "checkpoints", "ckpt"];

/// Our choice, from PyTorch 2.15, Triton 3, Lightning 2, Transformers 4, DeepSpeed and
/// Megatron-Core.
const PAUSES: [Pause; 10] = [
    Pause {
        places: EVERYWHERE,
        words: CHECKPOINT,
        and: &[
            "save", "write", "dump", "store", "upload", "export", "finalize",
        ],
        what: PauseKind::WritesCheckpoint,
    },
    Pause {
        places: EVERYWHERE,
        words: CHECKPOINT,
        and: &["load", "read", "restore"],
        what: PauseKind::ReadsCheckpoint,
    },
    // What is loaded by these may as well be data.
    Pause {
        places: &["torch/serialization.py", "safetensors/"],
        words: &["save"],
        and: ANY,
        what: PauseKind::WritesCheckpoint,
    },
    Pause {
        places: &["torch/distributed/checkpoint/"],
        words: ANY,
        and: ANY,
        what: PauseKind::HandlesCheckpoint,
    },
    Pause {
        places: &["torch/_dynamo/convert_frame.py"],
        words: ANY,
        and: ANY,
        what: PauseKind::Compiles,
    },
    // What was compiled runs below other functions of theirs.
    Pause {
        places: &[
            "torch/_inductor/",
            "torch/utils/cpp_extension.py",
            "triton/",
        ],
        words: &["compile", "compiler", "precompile", "autotune"],
        and: ANY,
        what: PauseKind::Compiles,
    },
    Pause {
        places: &["/loops/evaluation_loop.py"],
        words: ANY,
        and: ANY,
        what: PauseKind::Evaluates,
    },
    Pause {
        places: EVERYWHERE,
        words: &["eval", "evaluate", "evaluation", "validation"],
        and: ANY,
        what: PauseKind::Evaluates,
    },
    // By itself it may also check arguments.
    Pause {
        places: EVERYWHERE,
        words: &["validate", "test"],
        and: &["epoch", "loop", "model"],
        what: PauseKind::Evaluates,
    },
    Pause {
        places: EVERYWHERE,
        words: &["download", "downloads"],
        and: ANY,
        what: PauseKind::Downloads,
    },
];

/// Where ranks wait in collectives.
const COLLECTIVES: &str = "torch/distributed/distributed_c10d.py";
/// Whole names of functions that evaluate.
const EVALUATE: [&str; 2] = ["validate", "test"];
/// Words of functions that do, or may do, more than pause.
const MORE: [&str; 8] = [
    "train", "training", "trainer", "pretrain", "finetune", "fit", "maybe", "async",
];

/// What ranks do that is known to take its time and to end. One of them that does something
/// else may be who the others wait for; one that stands in a collective waits itself.
pub(crate) fn pause<'a>(stacks: impl Iterator<Item = &'a Stack>) -> Option<PauseKind> {
    let mut found = None;
    for stack in stacks.filter(|stack| !stack.frames.is_empty()) {
        // Who was stopped does not go on by itself, in whatever function it stands.
        if stack.state == ProcessState::Stopped {
            return None;
        }
        let does = stack
            .frames
            .iter()
            .position(|frame| pause_in(frame).is_some());
        // Frames begin with the innermost: these were called by the pause. A rank that evaluates
        // and waits there for all others is not the one that they wait for.
        let below = &stack.frames[..does.unwrap_or(stack.frames.len())];
        if below.iter().any(|frame| frame.file.contains(COLLECTIVES)) {
            continue;
        }
        let does = pause_in(&stack.frames[does?]);
        found = found.or(does);
    }
    found
}

fn pause_in(frame: &Frame) -> Option<PauseKind> {
    // From Python 3.11 on methods stand with their classes.
    let name = frame
        .function
        .rsplit('.')
        .next()
        .unwrap_or_default()
        .to_lowercase();
    let name = name.trim_matches('_');
    let has = |known: &[&str]| name.split('_').any(|word| known.contains(&word));
    if has(&MORE) {
        return None;
    }
    if EVALUATE.contains(&name) {
        return Some(PauseKind::Evaluates);
    }
    PAUSES
        .iter()
        .find(
            |Pause {
                 places, words, and, ..
             }| {
                (places.is_empty() || places.iter().any(|place| frame.file.contains(place)))
                    && (words.is_empty() || has(words))
                    && (and.is_empty() || has(and))
            },
        )
        .map(|pause| pause.what)
}

#[cfg(test)]
mod tests {
    use model::ProcessState;

    use super::*;

    const TORCH: &str = "/venv/lib/python3.11/site-packages/torch";

    /// A stack, innermost frame first, each `file function`.
    fn stack(frames: &[&str]) -> Stack {
        let frame = |text: &&str| {
            let (file, function) = text.split_once(' ').unwrap();
            let (file, function) = (file.replace("TORCH", TORCH), function.to_owned());
            Frame {
                function,
                file,
                line: 1,
            }
        };
        let frames = frames.iter().map(frame).collect();
        Stack::new(ProcessState::Sleeping, Some(false), frames)
    }

    fn said(frames: &[&str]) -> Option<PauseKind> {
        pause([stack(frames)].iter())
    }

    #[test]
    fn who_pauses_is_known_by_its_functions() {
        let main = "/job/train.py <module>";
        for (frames, what) in [
            (
                ["/job/io.py upload", "/job/train.py save_checkpoint"],
                PauseKind::WritesCheckpoint,
            ),
            (
                ["TORCH/serialization.py _save", "/job/io.py keep"],
                PauseKind::WritesCheckpoint,
            ),
            (
                ["/x/safetensors/torch.py save_file", "/job/io.py keep"],
                PauseKind::WritesCheckpoint,
            ),
            (
                ["/job/io.py get", "/job/io.py Model.load_ckpt"],
                PauseKind::ReadsCheckpoint,
            ),
            (
                [
                    "TORCH/distributed/checkpoint/filesystem.py write_data",
                    main,
                ],
                PauseKind::HandlesCheckpoint,
            ),
            (
                [
                    "TORCH/_dynamo/convert_frame.py _compile",
                    "/job/net.py forward",
                ],
                PauseKind::Compiles,
            ),
            (
                ["TORCH/_inductor/compile_fx.py fx_codegen_and_compile", main],
                PauseKind::Compiles,
            ),
            (
                [
                    "/x/triton/compiler/compiler.py compile",
                    "/job/net.py forward",
                ],
                PauseKind::Compiles,
            ),
            (
                [
                    "TORCH/nn/modules/linear.py forward",
                    "/job/train.py evaluate",
                ],
                PauseKind::Evaluates,
            ),
            (
                [
                    "/x/lightning/pytorch/loops/evaluation_loop.py _EvaluationLoop.run",
                    main,
                ],
                PauseKind::Evaluates,
            ),
            (
                ["/job/net.py forward", "/job/train.py validate"],
                PauseKind::Evaluates,
            ),
            (
                ["/job/net.py forward", "/job/train.py test_epoch"],
                PauseKind::Evaluates,
            ),
            (
                ["/x/huggingface_hub/file_download.py hf_hub_download", main],
                PauseKind::Downloads,
            ),
        ] {
            assert_eq!(said(&frames), Some(what), "{frames:?}");
        }
    }

    #[test]
    fn training_under_a_name_that_sounds_like_a_pause_is_none() {
        for frames in [
            // Activation checkpointing, by PyTorch 2.15 and Megatron-Core.
            vec![
                "/job/net.py forward",
                "TORCH/utils/checkpoint.py _checkpoint_impl",
                "TORCH/utils/checkpoint.py checkpoint",
                "TORCH/_dynamo/eval_frame.py _fn",
                "TORCH/_compile.py inner",
            ],
            vec![
                "/job/net.py forward",
                "TORCH/utils/checkpoint.py recompute_fn",
                "TORCH/utils/checkpoint.py _run_fn_with_dynamo_disabled",
            ],
            vec![
                "/megatron/core/tensor_parallel/random.py checkpoint",
                "/megatron/core/transformer/transformer_block.py \
                 TransformerBlock._checkpointed_forward",
            ],
            // Below what was compiled.
            vec![
                "/job/net.py read",
                "/tmp/torchinductor_me/ew/cew4.py call",
                "TORCH/_inductor/output_code.py CompiledFxGraph.__call__",
                "TORCH/_functorch/_aot_autograd/runtime_wrappers.py _compiled_forward",
                "TORCH/_dynamo/eval_frame.py _fn",
                "/job/net.py forward",
                "TORCH/_dynamo/eval_frame.py compile_wrapper",
            ],
            vec![
                "/x/triton/runtime/jit.py JITFunction.run",
                "/job/net.py forward",
            ],
            // Words of paths, and of functions that do more.
            vec!["/checkpoints/download/validate/train.py step"],
            vec!["/job/data.py read", "/job/main.py train_and_evaluate"],
            vec!["/x/transformers/trainer.py Trainer._maybe_log_save_evaluate"],
            vec!["/job/data.py validate_batch"],
            vec!["/job/main.py resume_from_checkpoint"],
            // Data that was written by torch.save.
            vec![
                "TORCH/serialization.py load",
                "/job/data.py Shards.__getitem__",
            ],
        ] {
            assert_eq!(said(&frames), None, "{frames:?}");
        }
    }

    #[test]
    fn a_rank_that_pauses_does_not_excuse_another() {
        let saves = stack(&["TORCH/serialization.py save", "/job/train.py main"]);
        let reads = stack(&["/job/data.py read", "/job/train.py main"]);
        let waits = stack(&[
            "TORCH/distributed/distributed_c10d.py recv",
            "/job/train.py evaluate",
        ]);
        assert_eq!(pause([&saves, &reads].into_iter()), None);
        assert_eq!(
            pause([&saves, &waits].into_iter()),
            Some(PauseKind::WritesCheckpoint)
        );
        assert_eq!(pause([&waits].into_iter()), None, "stuck in an evaluation");
        let stopped = Stack {
            state: ProcessState::Stopped,
            ..saves.clone()
        };
        assert_eq!(pause([&stopped].into_iter()), None);
        let unread = Stack {
            frames: Vec::new(),
            ..saves.clone()
        };
        assert_eq!(
            pause([&unread, &saves].into_iter()),
            Some(PauseKind::WritesCheckpoint)
        );
    }
}
