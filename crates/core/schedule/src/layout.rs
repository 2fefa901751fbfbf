use std::fmt;
use std::str::FromStr;

/// A way in which a job is divided over its ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Axis {
    /// Ranks that share each layer: `tp`.
    Tensor,
    /// Ranks that share each sequence: `cp`.
    Context,
    /// Ranks that hold different experts: `ep`.
    Expert,
    /// Ranks that hold the same weights and take different data: `dp`.
    Data,
    /// Ranks that hold different layers: `pp`.
    Pipeline,
}

impl Axis {
    /// All of them, in the order in which Megatron-LM counts ranks by default, fastest first.
    pub const ALL: [Self; 5] = [
        Self::Tensor,
        Self::Context,
        Self::Expert,
        Self::Data,
        Self::Pipeline,
    ];

    /// The axis as it is written in options: `tp`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tensor => "tp",
            Self::Context => "cp",
            Self::Expert => "ep",
            Self::Data => "dp",
            Self::Pipeline => "pp",
        }
    }
}

impl FromStr for Axis {
    type Err = LayoutError;

    fn from_str(name: &str) -> Result<Self, LayoutError> {
        let known = Self::ALL.into_iter().find(|axis| axis.name() == name);
        known.ok_or_else(|| LayoutError::UnknownAxis {
            name: name.to_owned(),
        })
    }
}

/// A layout that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// A name that is none of an axis.
    #[error("{name:?} is not one of tp, cp, ep, dp, pp")]
    UnknownAxis {
        /// The name.
        name: String,
    },
    /// An axis stands twice in an order, or a size is zero.
    #[error("{} appears twice or is zero", axis.name())]
    Axis {
        /// The axis.
        axis: Axis,
    },
    /// The sizes do not multiply to the number of ranks.
    #[error("{sizes} does not divide {ranks} ranks")]
    Ranks {
        /// The sizes, in words.
        sizes: String,
        /// The ranks.
        ranks: u32,
    },
}

/// Which rank has which coordinates.
///
/// # Invariants
/// Every axis stands in it once; the sizes multiply to the number of ranks, which fits `u32`.
/// # Source
/// MegaTrace's analyser: `tp = r mod T`, `dp = (r div T) mod D`, `pp = r div (N/P)`, which is
/// Megatron-LM's default order; docs/math/schedule.md. Other orders: Megatron-LM's
/// `--use-tp-pp-dp-mapping` and order strings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Axes and sizes, fastest first.
    axes: [(Axis, u32); 5],
}

/// Sizes of axes as they were given; what is not given is 1, but data parallelism, which is
/// whatever remains.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Size of each axis, if it was given.
    pub given: Vec<(Axis, u32)>,
    /// Order of the axes, fastest first; axes left out follow in the default order.
    pub order: Vec<Axis>,
}

impl Sizes {
    /// Whether the size of an axis was given.
    pub(crate) fn is_given(&self, axis: Axis) -> bool {
        self.given.iter().any(|(given, _)| *given == axis)
    }
}

impl Layout {
    /// The layout of so many ranks.
    ///
    /// # Errors
    /// [`LayoutError::Ranks`] if the sizes do not divide the ranks, and
    /// [`LayoutError::Axis`] for an axis given twice or a size of zero.
    pub fn new(ranks: u32, sizes: &Sizes) -> Result<Self, LayoutError> {
        let mut order: Vec<Axis> = Vec::new();
        let rest = Axis::ALL
            .into_iter()
            .filter(|axis| !sizes.order.contains(axis));
        for axis in sizes.order.iter().copied().chain(rest) {
            if order.contains(&axis) {
                return Err(LayoutError::Axis { axis });
            }
            order.push(axis);
        }
        let mut axes = Axis::ALL.map(|axis| (axis, 1));
        for (slot, axis) in axes.iter_mut().zip(order) {
            let mut given = sizes.given.iter().filter(|(given, _)| *given == axis);
            let size = given.next().map_or(1, |(_, size)| *size);
            if size == 0 || given.next().is_some() {
                return Err(LayoutError::Axis { axis });
            }
            *slot = (axis, size);
        }
        // Saturating: sizes that were typed in may multiply to anything, and none that big divides
        // the ranks.
        let product = axes
            .iter()
            .map(|(_, size)| u64::from(*size))
            .fold(1, u64::saturating_mul);
        let rest = u64::from(ranks) / product.max(1);
        let data_differs = sizes.is_given(Axis::Data) && rest != 1;
        if product * rest != u64::from(ranks) || rest == 0 || data_differs {
            let sizes: Vec<String> = sizes
                .given
                .iter()
                .map(|(axis, size)| format!("{} {size}", axis.name()))
                .collect();
            return Err(LayoutError::Ranks {
                sizes: sizes.join(", "),
                ranks,
            });
        }
        for (_, size) in axes.iter_mut().filter(|(axis, _)| *axis == Axis::Data) {
            // Fits: it divides the number of ranks.
            *size *= rest as u32;
        }
        Ok(Self { axes })
    }

    /// Whether sizes that were given can be those of so many ranks, the others being unknown.
    ///
    /// # Errors
    /// As [`Layout::new`].
    pub fn fits(ranks: u32, sizes: &Sizes) -> Result<(), LayoutError> {
        Self::new(ranks, sizes).map(|_| ())
    }

    /// Number of ranks.
    pub fn ranks(&self) -> u32 {
        self.axes.iter().map(|(_, size)| size).product()
    }

    /// Size of an axis.
    pub fn size(&self, axis: Axis) -> u32 {
        self.axes
            .iter()
            .find(|(known, _)| *known == axis)
            .map_or(1, |(_, size)| *size)
    }

    /// How far apart neighbours on an axis are.
    pub fn stride(&self, axis: Axis) -> u32 {
        self.axes
            .iter()
            .take_while(|(known, _)| *known != axis)
            .map(|(_, size)| size)
            .product()
    }

    /// A rank's coordinate on an axis.
    pub fn coordinate(&self, rank: u32, axis: Axis) -> u32 {
        rank / self.stride(axis) % self.size(axis)
    }

    /// The rank that differs from this one in one coordinate only.
    pub fn neighbour(&self, rank: u32, axis: Axis, coordinate: u32) -> u32 {
        let stride = self.stride(axis);
        // Not below zero: what is taken away is a part of the rank.
        rank - self.coordinate(rank, axis) * stride + coordinate * stride
    }

    /// The first rank of the group a rank forms with those that differ from it on `axes`
    /// only: the group's name.
    pub fn first_of_group(&self, rank: u32, axes: &[Axis]) -> u32 {
        axes.iter()
            .fold(rank, |rank, axis| self.neighbour(rank, *axis, 0))
    }
}

impl fmt::Display for Layout {
    /// Writes the axes that divide the job, as `tp 2, pp 4`.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<String> = self
            .axes
            .iter()
            .filter(|(_, size)| *size > 1)
            .map(|(axis, size)| format!("{} {size}", axis.name()))
            .collect();
        formatter.write_str(&parts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sizes(given: &[(Axis, u32)]) -> Sizes {
        Sizes {
            given: given.to_vec(),
            order: Vec::new(),
        }
    }

    #[test]
    fn the_default_order_is_megatrons() {
        let layout = Layout::new(64, &sizes(&[(Axis::Tensor, 2), (Axis::Pipeline, 4)])).unwrap();
        assert_eq!(layout.to_string(), "tp 2, dp 8, pp 4");
        for rank in 0..64 {
            assert_eq!(layout.coordinate(rank, Axis::Tensor), rank % 2);
            assert_eq!(layout.coordinate(rank, Axis::Data), rank / 2 % 8);
            assert_eq!(layout.coordinate(rank, Axis::Pipeline), rank / 16);
        }
        assert_eq!(layout.first_of_group(37, &[Axis::Pipeline]), 5);
    }

    #[test]
    fn other_orders_count_otherwise() {
        let order = vec![Axis::Tensor, Axis::Pipeline, Axis::Data];
        let given = vec![(Axis::Tensor, 2), (Axis::Pipeline, 4)];
        let layout = Layout::new(16, &Sizes { given, order }).unwrap();
        assert_eq!(layout.coordinate(5, Axis::Pipeline), 2);
        assert_eq!(layout.coordinate(9, Axis::Data), 1);
    }

    #[test]
    fn sizes_that_do_not_divide_the_ranks_are_refused() {
        let refused = Layout::new(8, &sizes(&[(Axis::Tensor, 3)])).unwrap_err();
        assert_eq!(refused.to_string(), "tp 3 does not divide 8 ranks");
        assert!(Layout::new(8, &sizes(&[(Axis::Data, 4)])).is_err());
        assert!(Layout::new(8, &sizes(&[(Axis::Data, 0)])).is_err());
        assert!(Layout::new(0, &sizes(&[])).is_err());
        assert!(Layout::new(8, &sizes(&[(Axis::Tensor, u32::MAX); 1])).is_err());
        assert!("xp".parse::<Axis>().is_err());
    }

    proptest! {
        /// Coordinates name a rank, whatever the order and the sizes.
        #[test]
        fn ranks_and_coordinates_are_the_same_thing(
            sizes in proptest::array::uniform5(1u32..5),
            order in Just(Axis::ALL.to_vec()).prop_shuffle(),
        ) {
            let given: Vec<_> = Axis::ALL.into_iter().zip(sizes).collect();
            let ranks = sizes.iter().product();
            let layout = Layout::new(ranks, &Sizes { given, order }).unwrap();
            prop_assert_eq!(layout.ranks(), ranks);
            for rank in 0..ranks {
                let back = Axis::ALL.into_iter().fold(0, |at, axis| {
                    layout.neighbour(at, axis, layout.coordinate(rank, axis))
                });
                prop_assert_eq!(back, rank);
            }
        }
    }
}
