//! Names that become path components: checked before they touch the tree.

use super::Error;

/// Longest NQN (NVMe base specification 4.5, `NVMF_NQN_SIZE` less its NUL).
const NQN_MAX: usize = 223;

/// An NQN that is safe as a directory name.
pub(super) fn nqn<'a>(what: &'static str, value: &'a str) -> Result<&'a str, Error> {
    let why = if value.is_empty() {
        "it is empty"
    } else if value.len() > NQN_MAX {
        "it is longer than 223 bytes"
    } else if !value.starts_with("nqn.") {
        "it does not begin with nqn."
    } else if !value
        .bytes()
        .all(|b| b.is_ascii_graphic() && b != b'/' && b != b',')
    {
        "it has a character other than printable ASCII without / and ,"
    } else {
        return Ok(value);
    };
    Err(bad(what, value, why))
}

/// A serial number or model: printable ASCII that fits its field.
pub(super) fn text<'a>(what: &'static str, value: &'a str, max: usize) -> Result<&'a str, Error> {
    if value.is_empty() || value.len() > max {
        return Err(bad(what, value, "its length does not fit the field"));
    }
    if !value.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(bad(
            what,
            value,
            "it has a character other than printable ASCII",
        ));
    }
    Ok(value)
}

/// A namespace ID: 1 to `NVMET_MAX_NAMESPACES` (1,024).
pub(super) fn nsid(value: u32) -> Result<u32, Error> {
    if (1..=1024).contains(&value) {
        return Ok(value);
    }
    Err(bad(
        "namespace ID",
        &value.to_string(),
        "it is not within 1 to 1024",
    ))
}

fn bad(what: &'static str, value: &str, why: &'static str) -> Error {
    Error::BadName {
        what,
        value: value.to_owned(),
        why,
    }
}
