use std::collections::BTreeMap;

use serde::de::{Deserialize, Deserializer, Error};

/// Reads a number of the settings file, for `#[serde(deserialize_with)]`.
///
/// Infinity is one: a limit that is never reached.
///
/// # Errors
/// For a negative number and for what is not a number.
pub fn threshold<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    let number = f64::deserialize(deserializer)?;
    // NaN is not at least zero, and is refused like a negative number.
    if number >= 0.0 {
        return Ok(number);
    }
    Err(D::Error::custom(format!(
        "expected zero or more, found {number}"
    )))
}

/// Reads numbers as [`threshold`] does, by name.
///
/// # Errors
/// For a negative number and for what is not a number.
pub fn thresholds<'de, D>(deserializer: D) -> Result<BTreeMap<String, f64>, D::Error>
where
    D: Deserializer<'de>,
{
    #[derive(serde::Deserialize)]
    // `deserialize_with` applies to fields, not to the values of a map.
    struct Threshold(#[serde(deserialize_with = "threshold")] f64);
    let numbers = BTreeMap::<String, Threshold>::deserialize(deserializer)?;
    Ok(numbers
        .into_iter()
        .map(|(name, Threshold(number))| (name, number))
        .collect())
}

#[cfg(test)]
mod tests {
    use serde::de::IntoDeserializer;
    use serde::de::value::Error;

    use super::*;

    fn read(number: f64) -> Option<f64> {
        let deserializer = IntoDeserializer::<Error>::into_deserializer(number);
        threshold(deserializer).ok()
    }

    #[test]
    fn a_threshold_is_zero_or_more() {
        for number in [0.0, 0.05, 1e300, f64::INFINITY] {
            assert_eq!(read(number), Some(number));
        }
        for number in [-1.0, f64::NEG_INFINITY, f64::NAN] {
            assert_eq!(read(number), None, "{number}");
        }
    }

    #[test]
    fn one_bad_number_by_name_refuses_all() {
        let read = |last: &str| {
            let json = format!("{{\"data.next_wait\":0.1,\"model\":{last}}}");
            thresholds(&mut serde_json::Deserializer::from_str(&json)).ok()
        };
        let numbers = [
            ("data.next_wait".to_owned(), 0.1),
            ("model".to_owned(), 2.0),
        ];
        assert_eq!(read("2"), Some(numbers.into()));
        assert_eq!(read("-2"), None);
    }
}
