//! Operations as text: a line each, their steps as a waterfall below, and what each step costs in all.
//! At most 80 columns.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write;

use crate::ops::Operation;

const WIDTH: usize = 80;
const BAR: usize = 24;
/// Columns before a step's name.
const INDENT: usize = 2 + 9 + 1 + 9 + 2 + BAR + 2;

/// The operations, in the order given, and the totals by step.
pub(super) fn render(operations: &[Operation]) -> String {
    let mut out = String::new();
    let mut totals: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for operation in operations {
        header(&mut out, operation);
        for step in &operation.steps {
            let total = totals.entry(&step.name).or_default();
            *total = (total.0 + 1, total.1 + step.duration);
            let _ = writeln!(
                out,
                "  {:>9} {:>9}  {:BAR$}  {}",
                ms(step.offset),
                ms(step.duration),
                bar(step.offset, step.duration, operation.total),
                fit(&step.name, WIDTH - INDENT),
            );
            if let Some(error) = &step.error {
                let _ = writeln!(out, "{:INDENT$}! {}", "", fit(error, WIDTH - INDENT - 2));
            }
        }
        if let Some(error) = &operation.error {
            let _ = writeln!(out, "  ! {}", fit(error, WIDTH - 4));
        }
        out.push('\n');
    }
    if totals.is_empty() {
        return out;
    }
    let mut totals: Vec<_> = totals.into_iter().collect();
    totals.sort_by_key(|(name, (_, time))| (std::cmp::Reverse(*time), *name));
    let _ = writeln!(
        out,
        "  {:>9} {:>9}  by step (times run, ms in all)",
        "n", "ms"
    );
    for (name, (count, time)) in totals {
        let _ = writeln!(
            out,
            "  {count:>9} {:>9}  {}",
            ms(time),
            fit(name, WIDTH - 23)
        );
    }
    out
}

fn header(out: &mut String, operation: &Operation) {
    let outcome = if operation.error.is_some() {
        "failed"
    } else {
        "ok"
    };
    let tail = format!("  {} ms  {outcome}", ms(operation.total));
    let name = fit(&operation.name, 32);
    let volume = fit(
        &operation.volume,
        WIDTH.saturating_sub(name.chars().count() + 2 + tail.len()),
    );
    let _ = writeln!(out, "{name}  {volume}{tail}");
}

/// Where in the operation a step lies: at least one mark, never past the end.
fn bar(offset: u64, duration: u64, total: u64) -> String {
    let scale = |time: u64| {
        let column = u128::from(time) * (BAR as u128) / u128::from(total.max(1));
        usize::try_from(column).unwrap_or(BAR).min(BAR)
    };
    let begin = scale(offset).min(BAR - 1);
    let end = scale(offset.saturating_add(duration)).clamp(begin + 1, BAR);
    format!("{}{}", ".".repeat(begin), "#".repeat(end - begin))
}

fn ms(nanos: u64) -> String {
    format!("{}.{:02}", nanos / 1_000_000, nanos % 1_000_000 / 10_000)
}

/// On one line and in its columns, whatever it is.
fn fit(text: &str, columns: usize) -> Cow<'_, str> {
    if text.chars().count() <= columns && !text.contains(char::is_control) {
        return Cow::Borrowed(text);
    }
    let plain = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    let mut short: String = plain.clone().take(columns).collect();
    if plain.count() > columns {
        short.pop();
        short.push('…');
    }
    Cow::Owned(short)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::timeline::StepRecord;

    fn step(name: &'static str, offset: u64, duration: u64) -> StepRecord {
        StepRecord {
            name: name.into(),
            offset: offset * 10_000,
            duration: duration * 10_000,
            error: None,
        }
    }

    fn stage() -> Operation {
        Operation {
            name: "NodeStageVolume".into(),
            volume: "pvc-1".into(),
            started: 0,
            total: 120_000_000,
            error: None,
            steps: vec![
                step("observe", 0, 12),
                step("fabrics.connect", 12, 6000),
                step("mount.attach", 6012, 5988),
            ],
        }
    }

    #[test]
    fn a_waterfall() {
        let expected = "\
NodeStageVolume  pvc-1  120.00 ms  ok
       0.00      0.12  #                         observe
       0.12     60.00  ############              fabrics.connect
      60.12     59.88  ............############  mount.attach

          n        ms  by step (times run, ms in all)
          1     60.00  fabrics.connect
          1     59.88  mount.attach
          1      0.12  observe
";
        assert_eq!(render(&[stage()]), expected);
    }

    #[test]
    fn nothing_is_wider_than_a_terminal_or_breaks_a_line() {
        let mut wide = stage();
        wide.volume = "v".repeat(200);
        wide.total = 0;
        wide.error = Some("x\ny\u{1b}[31m ".repeat(40));
        wide.steps[1].error = Some("é".repeat(200));
        wide.steps[2].offset = u64::MAX;
        let text = render(&[wide]);
        assert!(
            text.lines().all(|line| line.chars().count() <= WIDTH),
            "{text}"
        );
        assert!(!text.contains('\u{1b}'));
        assert!(text.contains("failed"));
    }

    #[test]
    fn no_operations_make_no_text() {
        assert_eq!(render(&[]), "");
    }
}
