//! The figures that count, their bars, and what the samples make of them.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use serde::Serialize;
use zvolt_bench::sample::{Sample, Side};

use super::measure::Taken;

/// Microseconds up to a minute, with three digits.
fn histogram() -> Result<Histogram<u64>> {
    Ok(Histogram::new_with_bounds(1, 60_000_000, 3)?)
}

/// How long one side took for one piece of work.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Distribution {
    /// The case: `ext4`, `local`, …
    pub case: String,
    /// The work: `attach`, `detach`, …
    pub what: String,
    /// Who.
    pub side: Side,
    /// How many samples.
    pub count: u64,
    /// Median, milliseconds.
    pub p50: f64,
    /// 90th percentile, milliseconds.
    pub p90: f64,
    /// 99th percentile, milliseconds.
    pub p99: f64,
    /// The greatest, milliseconds.
    pub max: f64,
    /// Medians of the steps in milliseconds, in the order of the steps.
    pub steps: Vec<(String, f64)>,
}

/// One figure against its bar.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Figure {
    /// What it is.
    pub name: String,
    /// The value; a ratio but for memory.
    pub value: f64,
    /// What it is to stay under.
    pub bar: f64,
    /// `×` or `MiB`.
    pub unit: &'static str,
}

impl Figure {
    /// Whether the bar is met.
    pub fn is_ok(&self) -> bool {
        self.value <= self.bar
    }
}

/// The distributions of all samples.
pub(super) fn distributions(taken: &Taken) -> Result<Vec<Distribution>> {
    let mut all = Vec::new();
    for (case, samples) in &taken.cases {
        let mut groups: BTreeMap<(&str, Side), Vec<&Sample>> = BTreeMap::new();
        for sample in samples {
            groups
                .entry((&sample.what, sample.side))
                .or_default()
                .push(sample);
        }
        for ((what, side), samples) in groups {
            all.push(distribution(case, what, side, &samples)?);
        }
    }
    Ok(all)
}

fn distribution(case: &str, what: &str, side: Side, samples: &[&Sample]) -> Result<Distribution> {
    let mut whole = histogram()?;
    let mut steps: Vec<(String, Histogram<u64>)> = Vec::new();
    for sample in samples {
        whole.record(sample.nanos.div_ceil(1000))?;
        for (name, nanos) in &sample.steps {
            let at = match steps.iter().position(|(known, _)| known == name) {
                Some(at) => at,
                None => {
                    steps.push((name.clone(), histogram()?));
                    steps.len() - 1
                }
            };
            steps[at].1.record(nanos.div_ceil(1000))?;
        }
    }
    #[allow(clippy::cast_precision_loss, reason = "microseconds of a minute fit")]
    let ms = |micros: u64| micros as f64 / 1000.0;
    let at = |quantile: f64| ms(whole.value_at_quantile(quantile));
    Ok(Distribution {
        case: case.into(),
        what: what.into(),
        side,
        count: whole.len(),
        p50: at(0.5),
        p90: at(0.9),
        p99: at(0.99),
        max: ms(whole.max()),
        steps: steps
            .into_iter()
            .map(|(name, h)| (name, ms(h.value_at_quantile(0.5))))
            .collect(),
    })
}

/// The median of one group.
fn p50(all: &[Distribution], case: &str, what: &str, side: Side) -> Result<f64> {
    let found = all
        .iter()
        .find(|d| d.case == case && d.what == what && d.side == side);
    let found = found.with_context(|| format!("nothing was measured of {case} {what} {side:?}"))?;
    Ok(found.p50)
}

/// All figures.
pub(super) fn figures(all: &[Distribution], resident: u64) -> Result<Vec<Figure>> {
    let ratio = |name: &str, over: f64, under: f64, bar: f64| Figure {
        name: name.into(),
        value: over / under,
        bar,
        unit: "×",
    };
    let of = |case: &str, what: &str, side: Side| p50(all, case, what, side);
    let published = |side: Side| -> Result<f64> {
        Ok(of("create", "create", side)?
            + of("admit", "admit", side)?
            + of("ext4", "attach", side)?)
    };
    #[allow(clippy::cast_precision_loss, reason = "bytes of one process fit")]
    let mib = resident as f64 / f64::from(1 << 20);
    use Side::{Baseline, Driver, Floor};
    Ok(vec![
        ratio(
            "stage + publish, existing ext4, cold, against the floor",
            of("ext4", "attach", Driver)?,
            of("ext4", "attach", Floor)?,
            1.10,
        ),
        ratio(
            "the same against child processes",
            of("ext4", "attach", Driver)?,
            of("ext4", "attach", Baseline)?,
            0.15,
        ),
        ratio(
            "unpublish + unstage against their floor",
            of("ext4", "detach", Driver)?,
            of("ext4", "detach", Floor)?,
            1.10,
        ),
        ratio(
            "local stage + publish against its floor",
            of("local", "attach", Driver)?,
            of("local", "attach", Floor)?,
            1.15,
        ),
        ratio(
            "create to published, new volume, against its floors",
            published(Driver)?,
            published(Floor)?,
            1.3,
        ),
        ratio(
            "controller publish against its configfs writes",
            of("admit", "admit", Driver)?,
            of("admit", "admit", Floor)?,
            3.0,
        ),
        Figure {
            name: "resident memory of an idle node".into(),
            value: mib,
            bar: 12.0,
            unit: "MiB",
        },
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(side: Side, millis: u64) -> Sample {
        Sample {
            side,
            what: "attach".into(),
            nanos: millis * 1_000_000,
            steps: vec![("connect".into(), millis * 500_000)],
        }
    }

    #[test]
    fn medians_are_by_side_and_work() {
        let samples = [10, 30, 20].map(|ms| sample(Side::Driver, ms)).to_vec();
        let taken = Taken {
            cases: vec![("ext4".into(), samples)],
            resident: 0,
        };
        let all = distributions(&taken).unwrap();
        assert_eq!(all.len(), 1);
        assert!((all[0].p50 - 20.0).abs() < 0.1, "{:?}", all[0]);
        assert!((all[0].steps[0].1 - 10.0).abs() < 0.1);
        assert!(p50(&all, "ext4", "attach", Side::Floor).is_err());
    }

    #[test]
    fn a_figure_over_its_bar_is_short() {
        let figure = |value| Figure {
            name: String::new(),
            value,
            bar: 1.1,
            unit: "×",
        };
        assert!(figure(1.1).is_ok());
        assert!(!figure(1.11).is_ok());
    }
}
