//! Time as the API writes it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Now, as RFC 3339 in UTC, to the second.
pub fn now() -> String {
    rfc3339(SystemTime::now())
}

/// A moment as RFC 3339 in UTC, to the second; anything before 1970 is 1970.
pub fn rfc3339(moment: SystemTime) -> String {
    let seconds = moment
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs();
    let (day, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(day);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z",
        second / 3600,
        second / 60 % 60,
        second % 60
    )
}

/// Seconds since the Unix epoch of what [`rfc3339`] has written; `None` for anything else.
pub fn seconds(text: &str) -> Option<i64> {
    if text.len() != "1970-01-01T00:00:00Z".len() {
        return None;
    }
    let (date, clock) = text.strip_suffix('Z')?.split_once('T')?;
    let three = |text: &str, between: char| {
        let mut numbers = text.split(between).map(|n| n.parse::<i64>().ok());
        let found = [numbers.next()??, numbers.next()??, numbers.next()??];
        numbers.next().is_none().then_some(found)
    };
    let ([year, month, day], [hour, minute, second]) = (three(date, '-')?, three(clock, ':')?);
    let seconds = days(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second;
    let back = SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).ok()?);
    (rfc3339(back) == text).then_some(seconds)
}

/// Days from 1970-01-01 to a date: [`civil`] the other way round.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let from_march = (month + 9) % 12;
    let of_year = (153 * from_march + 2) / 5 + day - 1;
    year * 365 + year / 4 - year / 100 + year / 400 + of_year - 719_468
}

/// Year, month and day of a count of days since 1970-01-01. Years begin in March here, so that the
/// leap day is a year's last and months need no table.
fn civil(days: u64) -> (u64, u64, u64) {
    const DAYS_0000_TO_1970: u64 = 719_468;
    const ERA: u64 = 146_097;
    let days = days + DAYS_0000_TO_1970;
    let (era, of_era) = (days / ERA, days % ERA);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 {
        from_march + 3
    } else {
        from_march - 9
    };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_moments() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_767_225_599, "2025-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(rfc3339(UNIX_EPOCH + Duration::from_secs(seconds)), text);
            assert_eq!(super::seconds(text), i64::try_from(seconds).ok());
        }
        for bad in [
            "",
            "Z",
            "2026-02-30T00:00:00Z",
            "2026-01-01T00:00:60Z",
            "2026-01-01",
            "2026-01-01T00:00:00+01:00",
            "99999999999-01-01T00:00:00Z",
            "9223372036854775807-01-01T00:00:00Z",
        ] {
            assert_eq!(super::seconds(bad), None, "{bad:?}");
        }
    }
}
