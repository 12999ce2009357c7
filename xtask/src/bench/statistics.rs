//! Medians and spreads.

use serde::{Deserialize, Serialize};

/// A median, its quartiles, and the median of each run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
    /// The median of each run's rounds: processes differ more than the rounds of one process.
    pub(crate) runs: Vec<f64>,
}

impl Spread {
    /// Computes the spread of all values of all runs; `None` without values.
    pub(crate) fn of(runs: &[Vec<f64>]) -> Option<Self> {
        let mut all: Vec<f64> = runs.iter().flatten().copied().collect();
        all.sort_unstable_by(f64::total_cmp);
        Some(Self {
            median: quantile(&all, 0.5)?,
            low: quantile(&all, 0.25)?,
            high: quantile(&all, 0.75)?,
            runs: runs.iter().filter_map(|run| median(run)).collect(),
        })
    }

    /// The smallest and the largest median of a run.
    pub(crate) fn range(&self) -> (f64, f64) {
        let fold = |pick: fn(f64, f64) -> f64| self.runs.iter().copied().fold(self.median, pick);
        (fold(f64::min), fold(f64::max))
    }
}

pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    quantile(&sorted, 0.5)
}

/// A quantile, interpolated between neighbours.
fn quantile(sorted: &[f64], part: f64) -> Option<f64> {
    let place = (sorted.len().checked_sub(1)? as f64) * part;
    let (below, above) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    Some(below + (above - below) * place.fract())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_quartiles() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        let spread = Spread::of(&[vec![1.0, 2.0, 3.0], vec![4.0, 5.0]]).unwrap();
        assert_eq!((spread.low, spread.median, spread.high), (2.0, 3.0, 4.0));
        assert_eq!((spread.runs.as_slice(), spread.range()), ([2.0, 4.5].as_slice(), (2.0, 4.5)));
        assert_eq!(Spread::of(&[Vec::new()]), None);
    }
}
