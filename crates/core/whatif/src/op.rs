/// What an operation of a training step does.
///
/// # Source
/// The types of operations in traces of ByteDance-Seed/StragglerAnalysis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OpKind {
    /// Forward pass of one microbatch through one model chunk.
    ForwardCompute,
    /// Backward pass of the same.
    BackwardCompute,
    /// Sends activations to the next pipeline stage.
    ForwardSend,
    /// Receives activations from the stage before.
    ForwardRecv,
    /// Sends gradients to the stage before.
    BackwardSend,
    /// Receives gradients from the next stage.
    BackwardRecv,
    /// Gathers parameters over the data-parallel ranks.
    ParamsAllGather,
    /// Reduces gradients over the data-parallel ranks.
    GradsReduceScatter,
    /// Reduces the gradients of the layer norms over the tensor-parallel ranks.
    LayernormAllReduce,
    /// Reduces the gradients of the shared embedding over the first and the last stage.
    EmbeddingAllReduce,
    /// Reduces what gradients are left over the data-parallel ranks, where the reduce
    /// scatters overlap with the backward passes.
    SeparateAllReduce,
    /// Clips gradients by their norm over all ranks.
    OptimizerClip,
    /// The optimizer.
    Optimizer,
    /// Garbage collection.
    Gc,
}

impl OpKind {
    /// All kinds, in their order.
    pub const ALL: [Self; 14] = [
        Self::ForwardCompute,
        Self::BackwardCompute,
        Self::ForwardSend,
        Self::ForwardRecv,
        Self::BackwardSend,
        Self::BackwardRecv,
        Self::ParamsAllGather,
        Self::GradsReduceScatter,
        Self::LayernormAllReduce,
        Self::EmbeddingAllReduce,
        Self::SeparateAllReduce,
        Self::OptimizerClip,
        Self::Optimizer,
        Self::Gc,
    ];

    /// The kind as traces spell it.
    pub fn name(self) -> &'static str {
        match self {
            Self::ForwardCompute => "forward-compute",
            Self::BackwardCompute => "backward-compute",
            Self::ForwardSend => "forward-send",
            Self::ForwardRecv => "forward-recv",
            Self::BackwardSend => "backward-send",
            Self::BackwardRecv => "backward-recv",
            Self::ParamsAllGather => "params-all-gather",
            Self::GradsReduceScatter => "grads-reduce-scatter",
            Self::LayernormAllReduce => "layernorm-grads-all-reduce",
            Self::EmbeddingAllReduce => "embedding-grads-all-reduce",
            Self::SeparateAllReduce => "separate-grads-all-reduce",
            Self::OptimizerClip => "optimizer-clip-main-grad",
            Self::Optimizer => "optimizer",
            Self::Gc => "gc",
        }
    }

    /// The kind with this name.
    pub fn from_name(name: &[u8]) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.name().as_bytes() == name)
    }

    /// The name time is charged to: sends and receives of one direction are one.
    pub(crate) fn family(self) -> &'static str {
        match self {
            Self::ForwardSend | Self::ForwardRecv => "forward-pp-comm",
            Self::BackwardSend | Self::BackwardRecv => "backward-pp-comm",
            other => other.name(),
        }
    }

    /// Whether it computes. What it would ideally take is a mean then; of communication it
    /// is a median, since single transfers can be slow by far.
    pub(crate) fn computes(self) -> bool {
        use OpKind::{BackwardCompute, ForwardCompute, Gc, Optimizer};
        matches!(self, ForwardCompute | BackwardCompute | Optimizer | Gc)
    }

    /// Whether all data-parallel ranks of a step wait for one another in it.
    pub(crate) fn meets_across_dp(self) -> bool {
        self.is_data_parallel() || self == Self::OptimizerClip
    }

    /// Whether it exists because of data parallelism.
    pub(crate) fn is_data_parallel(self) -> bool {
        use OpKind::{GradsReduceScatter, ParamsAllGather, SeparateAllReduce};
        matches!(
            self,
            ParamsAllGather | GradsReduceScatter | SeparateAllReduce
        )
    }
}
