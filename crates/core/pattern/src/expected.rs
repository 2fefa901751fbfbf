use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};

use model::{FunctionClass, Pattern};

/// From and to, both included.
pub type Range = [f64; 2];

/// Where patterns of a function are expected to lie.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpectedBox {
    /// Of beta, mu and sigma.
    pub ranges: [Range; 3],
    /// Which of them the settings file gives for this function.
    pub is_declared: [bool; 3],
}

/// What the settings file expects of functions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expected {
    /// Functions whose name contains this.
    pub function: String,
    /// Only those of this class.
    #[serde(default)]
    pub class: Option<FunctionClass>,
    /// Range of beta; that of the class if left out.
    #[serde(default, deserialize_with = "range")]
    pub beta: Option<Range>,
    /// Range of mu.
    #[serde(default, deserialize_with = "range")]
    pub mu: Option<Range>,
    /// Range of sigma.
    #[serde(default, deserialize_with = "range")]
    pub sigma: Option<Range>,
}

fn range<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Range>, D::Error> {
    let [low, high] = Range::deserialize(deserializer)?;
    // Put as what must hold: no comparison with NaN does, so NaN is refused.
    if 0.0 <= low && low <= high && high <= 1.0 {
        return Ok(Some([low, high]));
    }
    let found = format!("[{low}, {high}]");
    Err(D::Error::custom(format!(
        "expected [low, high] from 0 to 1, found {found}"
    )))
}

const ALL: Range = [0.0, 1.0];

impl ExpectedBox {
    /// What is expected of a class: the host should cost next to nothing beside a device, and
    /// kernels may cost what they like.
    ///
    /// # Source
    /// PerfTracker (2025) for Python and kernels; the bounds of collectives and memory
    /// operations are our choice (docs/math/pattern.md).
    pub fn of_class(class: FunctionClass) -> Self {
        let most = match class {
            FunctionClass::GpuCompute | FunctionClass::CpuCompute => 1.0,
            FunctionClass::Memory => 0.05,
            FunctionClass::Collective => 0.30,
            FunctionClass::Python | FunctionClass::OtherCpu => 0.01,
        };
        Self {
            ranges: [[0.0, most], ALL, ALL],
            is_declared: [false; 3],
        }
    }

    /// What is expected of a function: what the first entry that fits says, else its class.
    pub fn of(class: FunctionClass, name: &str, entries: &[Expected]) -> Self {
        let mut expected = Self::of_class(class);
        if let Some(entry) = entries.iter().find(|entry| {
            entry.class.is_none_or(|of| of == class) && name.contains(&entry.function)
        }) {
            let given = [entry.beta, entry.mu, entry.sigma];
            expected.is_declared = given.map(|given| given.is_some());
            for (range, given) in expected.ranges.iter_mut().zip(given) {
                *range = given.unwrap_or(*range);
            }
        }
        expected
    }

    /// How far a pattern lies outside, in beta, mu and sigma; mu and sigma count only if they
    /// were measured.
    pub fn excess(&self, pattern: &Pattern) -> [f64; 3] {
        let dimensions = if pattern.is_measured() { 3 } else { 1 };
        let mut excess = [0.0; 3];
        let values = pattern.values();
        for at in 0..dimensions {
            let ([low, high], value) = (self.ranges[at], f64::from(values[at]));
            excess[at] = (low - value).max(value - high).max(0.0);
        }
        excess
    }
}

#[cfg(test)]
mod tests {
    use serde::de::IntoDeserializer;
    use serde::de::value::{self, SeqDeserializer};

    use super::*;

    #[test]
    fn a_kernel_is_unexpected_only_where_the_file_says_so() {
        let slow = Pattern {
            beta: 0.9,
            mu: 0.3,
            sigma: 0.1,
            events: 5,
            measured: 5,
        };
        let class = FunctionClass::GpuCompute;
        let nothing = ExpectedBox::of(class, "gemm", &[]);
        assert_eq!(nothing.excess(&slow), [0.0; 3]);
        let entry = Expected {
            function: "gemm".to_owned(),
            mu: Some([0.8, 1.0]),
            ..Expected::default()
        };
        let expected = ExpectedBox::of(class, "ampere_sgemm_128", &[entry]);
        assert_eq!(expected.is_declared, [false, true, false]);
        let [beta, mu, sigma] = expected.excess(&slow);
        assert_eq!((beta, sigma), (0.0, 0.0));
        assert!((mu - 0.5).abs() < 1e-6);
    }

    #[test]
    fn a_range_that_no_pattern_can_lie_in_is_refused() {
        let read = |values: &[f64]| {
            let given: SeqDeserializer<_, value::Error> = values.to_vec().into_deserializer();
            range(given).map_err(|refused| refused.to_string())
        };
        assert_eq!(read(&[0.0, 1.0]), Ok(Some([0.0, 1.0])));
        for wrong in [[0.9, 0.1], [-0.1, 0.5], [0.5, 1.1], [f64::NAN, 1.0]] {
            let refused = read(&wrong).unwrap_err();
            assert!(
                refused.starts_with("expected [low, high] from 0 to 1"),
                "{refused}"
            );
        }
        assert!(read(&[0.5]).is_err());
    }

    #[test]
    fn what_was_not_measured_is_not_unexpected() {
        let pattern = Pattern {
            beta: 0.2,
            events: 1,
            ..Pattern::default()
        };
        let entry = Expected {
            function: String::new(),
            mu: Some([0.5, 1.0]),
            ..Expected::default()
        };
        let expected = ExpectedBox::of(FunctionClass::Collective, "x", &[entry]);
        assert_eq!(expected.excess(&pattern), [0.0; 3]);
    }
}
