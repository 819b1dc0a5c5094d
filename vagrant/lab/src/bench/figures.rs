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
    /// What no change may bring it over, in a machine that is emulated: what repeated runs gave, with room for their
    /// noise (`bench/README.md`). The bar itself where emulation does not matter.
    pub guard: f64,
    /// `×` or `MiB`.
    pub unit: &'static str,
}

impl Figure {
    /// Whether the bar is met.
    pub fn is_ok(&self) -> bool {
        self.value <= self.bar
    }

    /// Whether it is no worse than it was.
    pub fn is_guarded(&self) -> bool {
        self.value <= self.guard
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

/// One side's work in one case.
type Of = (&'static str, &'static str, Side);

/// A ratio: sums of quantiles over sums of quantiles.
struct Ratio {
    name: &'static str,
    quantile: Quantile,
    over: &'static [Of],
    under: &'static [Of],
    bar: f64,
    guard: f64,
}

#[derive(Clone, Copy)]
enum Quantile {
    P50,
    P99,
}

/// A 99th percentile is one sample where there are fewer.
const ENOUGH_FOR_P99: u64 = 100;

const fn p50(
    name: &'static str,
    over: &'static [Of],
    under: &'static [Of],
    (bar, guard): (f64, f64),
) -> Ratio {
    Ratio {
        name,
        quantile: Quantile::P50,
        over,
        under,
        bar,
        guard,
    }
}

/// What is to be reached.
const RATIOS: [Ratio; 8] = {
    use Side::{Baseline, Driver, Floor};
    const COLD: &[Of] = &[("ext4", "attach", Driver)];
    const WARM: &[Of] = &[("ext4", "warm attach", Driver)];
    const COLD_FLOOR: &[Of] = &[("ext4", "attach", Floor)];
    const LOCAL: &[Of] = &[("local", "attach", Driver)];
    const DETACH: &[Of] = &[("ext4", "detach", Driver)];
    const ADMIT: &[Of] = &[("admit", "admit", Driver)];
    const ALL: &[Of] = &[("create", "create", Driver), ADMIT[0], COLD[0]];
    const ADMIT_FLOOR: &[Of] = &[("admit", "admit", Floor)];
    const ALL_FLOORS: &[Of] = &[("create", "create", Floor), ADMIT_FLOOR[0], COLD_FLOOR[0]];
    const CHILDREN: &[Of] = &[("ext4", "attach", Baseline)];
    const DETACH_FLOOR: &[Of] = &[("ext4", "detach", Floor)];
    const LOCAL_FLOOR: &[Of] = &[("local", "attach", Floor)];
    [
        p50(
            "stage + publish, existing ext4, cold, against the floor",
            COLD,
            COLD_FLOOR,
            (1.10, 2.2),
        ),
        Ratio {
            quantile: Quantile::P99,
            ..p50("the same, 99th percentile", COLD, COLD_FLOOR, (1.40, 3.0))
        },
        p50(
            "the same against child processes",
            COLD,
            CHILDREN,
            (0.15, 0.3),
        ),
        p50(
            "warm stage + publish (pooled), against the cold floor",
            WARM,
            COLD_FLOOR,
            (0.65, 0.75),
        ),
        p50(
            "unpublish + unstage against their floor",
            DETACH,
            DETACH_FLOOR,
            (1.10, 2.0),
        ),
        p50(
            "local stage + publish against its floor",
            LOCAL,
            LOCAL_FLOOR,
            (1.15, 5.0),
        ),
        p50(
            "create to published, new volume, against its floors",
            ALL,
            ALL_FLOORS,
            (1.30, 2.6),
        ),
        p50(
            "controller publish against its configfs writes",
            ADMIT,
            ADMIT_FLOOR,
            (3.0, 100.0),
        ),
    ]
};

/// What is to be reached with many volumes.
const OF_MANY: [Ratio; 2] = {
    use Side::{Driver, Floor};
    const FEW: &[Of] = &[("beside few", "attach", Driver)];
    const MANY: &[Of] = &[("beside many", "attach", Driver)];
    const START: &[Of] = &[("start", "export", Driver)];
    const START_FLOOR: &[Of] = &[("start", "export", Floor)];
    [
        p50(
            "stage + publish beside many staged, against few",
            MANY,
            FEW,
            (1.15, 1.5),
        ),
        p50(
            "agent start, against bare configfs writes",
            START,
            START_FLOOR,
            (1.5, 20.0),
        ),
    ]
};

/// The sum of one quantile over groups; `None` where one has too few samples for it.
fn sum(all: &[Distribution], groups: &[Of], quantile: Quantile) -> Result<Option<f64>> {
    let mut sum = 0.0;
    for (case, what, side) in groups {
        let found = all
            .iter()
            .find(|d| d.case == *case && d.what == *what && d.side == *side);
        let found =
            found.with_context(|| format!("nothing was measured of {case} {what} {side:?}"))?;
        sum += match quantile {
            Quantile::P50 => found.p50,
            Quantile::P99 if found.count >= ENOUGH_FOR_P99 => found.p99,
            Quantile::P99 => return Ok(None),
        };
    }
    Ok(Some(sum))
}

const IDLE: &str = "resident memory of an idle node";
const TIMELINE: &str = "a step of the timeline, not emulated";

/// What the figures of the short form are called.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    let ratios = RATIOS
        .iter()
        .filter(|r| matches!(r.quantile, Quantile::P50));
    ratios.map(|r| r.name).chain([IDLE, TIMELINE])
}

/// All figures.
pub(super) fn figures(all: &[Distribution], taken: &Taken) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    let of_many: &[Ratio] = if taken.scale.is_some() { &OF_MANY } else { &[] };
    for ratio in RATIOS.iter().chain(of_many) {
        let over = sum(all, ratio.over, ratio.quantile)?;
        let under = sum(all, ratio.under, ratio.quantile)?;
        let (Some(over), Some(under)) = (over, under) else {
            continue;
        };
        figures.push(Figure {
            name: ratio.name.into(),
            value: over / under,
            bar: ratio.bar,
            guard: ratio.guard,
            unit: "×",
        });
    }
    let memory = |name: String, bytes: u64, bar| Figure {
        name,
        value: mib(bytes),
        bar,
        guard: bar,
        unit: "MiB",
    };
    figures.push(memory(IDLE.into(), taken.resident, 12.0));
    figures.push(Figure {
        name: TIMELINE.into(),
        value: f64::from(u32::try_from(taken.timeline).unwrap_or(u32::MAX)) / 1000.0,
        bar: 1.0,
        guard: 1.0,
        unit: "µs",
    });
    if let Some(scale) = &taken.scale {
        let many = scale.volumes;
        let staged = format!("resident memory of a node with {many} staged");
        figures.push(memory(staged, scale.node, 24.0));
        for (who, wakes) in [("node", scale.node_wakes), ("agent", scale.storage_wakes)] {
            figures.push(Figure {
                name: format!("wake-ups of an idle {who} with {many} volumes"),
                value: u32::try_from(wakes).unwrap_or(u32::MAX).into(),
                bar: 0.0,
                guard: 100.0,
                unit: "/min",
            });
        }
    }
    Ok(figures)
}

#[allow(clippy::cast_precision_loss, reason = "bytes of one process fit")]
fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(side: Side, millis: u64) -> Sample {
        Sample {
            side,
            what: "attach".into(),
            began: 0,
            nanos: millis * 1_000_000,
            steps: vec![("connect".into(), millis * 500_000)],
        }
    }

    #[test]
    fn medians_are_by_side_and_work() {
        let samples = [10, 30, 20].map(|ms| sample(Side::Driver, ms)).to_vec();
        let taken = Taken {
            cases: vec![("ext4".into(), samples)],
            ..Taken::default()
        };
        let all = distributions(&taken).unwrap();
        assert_eq!(all.len(), 1);
        assert!((all[0].p50 - 20.0).abs() < 0.1, "{:?}", all[0]);
        assert!((all[0].steps[0].1 - 10.0).abs() < 0.1);
        let none = sum(&all, &[("ext4", "attach", Side::Floor)], Quantile::P50);
        assert!(none.is_err());
    }

    #[test]
    fn a_tail_of_few_samples_is_no_figure() {
        let of = [("ext4", "attach", Side::Driver)];
        for (many, told) in [(99, false), (100, true)] {
            let samples = (0..many).map(|_| sample(Side::Driver, 7)).collect();
            let cases = vec![("ext4".into(), samples)];
            let all = distributions(&Taken {
                cases,
                ..Taken::default()
            })
            .unwrap();
            assert_eq!(sum(&all, &of, Quantile::P99).unwrap().is_some(), told);
            assert!(sum(&all, &of, Quantile::P50).unwrap().is_some());
        }
    }

    #[test]
    fn a_figure_over_its_bar_is_short() {
        let figure = |value| Figure {
            name: String::new(),
            value,
            bar: 1.1,
            guard: 2.0,
            unit: "×",
        };
        assert!(figure(1.1).is_ok());
        assert!(!figure(1.11).is_ok() && figure(1.11).is_guarded());
        assert!(!figure(2.01).is_guarded());
    }
}
