//! Names that profilers give things, and what they say.

use std::borrow::Cow;

/// The operation of a kernel that is a collective, by its name; `None` if it is none.
///
/// NCCL's kernels are called `ncclKernel_AllReduce_RING_LL_…` up to 2.18, later
/// `ncclDevKernel_AllReduce_…`, `ncclSymkDevKernel_AllReduce_…` or `ncclDevKernel_Generic`; RCCL's alike.
/// Others have the operation in their name as PyTorch writes it: `two_shot_all_reduce_kernel`.
pub(crate) fn collective_of_kernel(name: &str) -> Option<String> {
    for prefix in [
        "ncclKernel_",
        "ncclDevKernel_",
        "ncclSymkDevKernel_",
        "rcclKernel_",
        "rcclDevKernel_",
    ] {
        if let Some(at) = name.find(prefix) {
            let op = name[at + prefix.len()..].split(['_', '(']).next();
            return Some(
                op.filter(|op| *op != "Generic")
                    .unwrap_or_default()
                    .to_owned(),
            );
        }
    }
    // Traces of MTIA have collectives of this name.
    name.strip_prefix("hccl:")
        .or_else(|| name.strip_prefix("hccl_"))
        .or_else(|| of_others(name))
        .map(str::to_owned)
}

/// The operation of a kernel in which ranks wait for one another, of whatever library; empty if its name
/// does not tell it.
fn of_others(name: &str) -> Option<&'static str> {
    const OPERATIONS: [(&str, &str); 10] = [
        ("all_reduce", "allreduce"),
        ("allreduce", "allreduce"),
        // Of vLLM, and of what was made of it.
        ("cross_device_reduce", "allreduce"),
        ("reduce_scatter", "reduce_scatter"),
        ("reducescatter", "reduce_scatter"),
        ("all_gather", "allgather"),
        ("allgather", "allgather"),
        ("all_to_all", "alltoall"),
        ("alltoall", "alltoall"),
        ("deep_ep::", ""),
    ];
    const LIBRARIES: [&str; 4] = ["nccl", "rccl", "mscclKernel", "oneccl"];
    let plain = name.replace("(anonymous namespace)", "");
    // Parameters of a template may be named after anything.
    let function = plain.split(['<', '(']).next()?.to_ascii_lowercase();
    let named = OPERATIONS.iter().find(|(part, _)| function.contains(part));
    let is_of_library = || LIBRARIES.iter().any(|it| name.starts_with(it));
    named
        .map(|(_, op)| *op)
        .or_else(|| is_of_library().then_some(""))
}

/// Whether an operation joins two ranks, or may: NCCL runs an all-to-all in the same kernels, which has a name of
/// its own where PyTorch says it, and what is coalesced may be sends.
pub(crate) fn is_point_to_point(op: &str) -> bool {
    let names = ["send", "recv", "sendrecv", "coalesced"];
    names.iter().any(|name| op.eq_ignore_ascii_case(name))
}

/// A name without the addresses of objects in it: they differ from process to process.
pub(crate) fn without_addresses(name: &str) -> Cow<'_, str> {
    let mut out = String::new();
    let mut rest = name;
    while let Some(at) = rest.find("0x") {
        let digits = rest[at + 2..]
            .bytes()
            .take_while(u8::is_ascii_hexdigit)
            .count();
        out += &rest[..at];
        // An address has at least six digits; fewer are a constant, such as in `mask_0xff`.
        out += if digits >= 6 {
            "0x…"
        } else {
            &rest[at..at + 2 + digits]
        };
        rest = &rest[at + 2 + digits..];
    }
    if out.is_empty() {
        name.into()
    } else {
        (out + rest).into()
    }
}

/// A function's name without the path of a file that PyTorch's compiler generated: it has a hash in it, which
/// differs from rank to rank.
pub(crate) fn without_generated_path(name: &str) -> Cow<'_, str> {
    const FOLDER: &str = "torchinductor";
    let generated = || {
        let at = name.find(FOLDER)?;
        let from = name[..at].rfind(' ').map_or(0, |at| at + 1);
        let to = at + name[at..].find(".py")?;
        // A file of its own folder, and not of a package that is called so.
        let is_path = name[from..at].starts_with('/') && name[at..to].contains('/');
        is_path.then(|| [&name[..from], FOLDER, "/…", &name[to..]].concat())
    };
    generated().map_or(name.into(), Cow::from)
}

/// A name without the counts that `emit_nvtx` writes behind it.
#[cfg(any(feature = "nsys", test))]
pub(crate) fn without_counts(name: &str) -> &str {
    let end = [", op_id = ", ", seq = "]
        .iter()
        .filter_map(|count| name.find(count))
        .min();
    &name[..end.unwrap_or(name.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn collectives_are_known_by_the_names_of_all_versions() {
        let of = |name| collective_of_kernel(name);
        let old = "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long)";
        assert_eq!(of(old).as_deref(), Some("AllReduce"));
        let new = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)";
        assert_eq!(of(new).as_deref(), Some("AllGather"));
        assert_eq!(
            of("ncclDevKernel_Generic(ncclDevComm*)").as_deref(),
            Some("")
        );
        let others = [
            ("ncclSymkDevKernel_AllReduce_AGxLL_R_bf16(x)", "AllReduce"),
            ("rcclGenericKernel<1, false>(x)", ""),
            (
                "void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<x>()",
                "allreduce",
            ),
            (
                "void vllm::cross_device_reduce_2stage<half, 8>()",
                "allreduce",
            ),
            ("void deep_ep::intranode::dispatch<8>(int4*)", ""),
            ("oneccl_allgatherv_pcie", "allgather"),
        ];
        for (name, op) in others {
            assert_eq!(of(name).as_deref(), Some(op), "{name}");
        }
        assert_eq!(of("void gemm<all_reduce_epilogue>()"), None);
        assert_eq!(of("hipLaunchKernel"), None);
        assert_eq!(of("void at::native::reduce_kernel<512, 1>()"), None);
    }

    #[test]
    fn operators_have_no_counts() {
        assert_eq!(
            without_counts("aten::mm, seq = 7, op_id = 314290"),
            "aten::mm"
        );
        assert_eq!(without_counts("forward"), "forward");
    }

    #[test]
    fn files_of_the_compiler_have_no_hashes() {
        let bare = |name| without_generated_path(name).into_owned();
        let of_rank = "/tmp/torchinductor_root/k2/ck2abc7.py(155): call";
        assert_eq!(bare(of_rank), "torchinductor/….py(155): call");
        let own = "/job/torchinductor.py(3): call";
        assert_eq!(bare(own), own);
    }

    #[test]
    fn objects_have_no_addresses() {
        let method = "<built-in method run_backward of Engine object at 0x7f12ab34cd50>";
        let bare = "<built-in method run_backward of Engine object at 0x…>";
        assert_eq!(without_addresses(method), bare);
        assert_eq!(without_addresses("shape 0x10"), "shape 0x10");
        assert_eq!(without_addresses("plain"), "plain");
    }
}
