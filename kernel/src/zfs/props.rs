//! Properties: text to what the kernel takes, and back.

use std::ffi::{CStr, CString};

use super::ffi::handle::Dataset;
use super::ffi::nvlist::{NvList, NvRef, Value};
use super::ffi::{Kind, Libraries, PropType};
use super::{Error, Properties, name};
use crate::error::SysError;

/// Where what is created comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Birth {
    New(Kind),
    /// A volume's clone, which has the properties that are set once from its origin.
    Clone,
}

impl Birth {
    fn kind(self) -> Kind {
        match self {
            Self::New(kind) => kind,
            Self::Clone => Kind::Volume,
        }
    }
}

/// What is being created, and its list of properties so far.
pub(super) struct Builder<'a> {
    libraries: &'static Libraries,
    dataset: &'a str,
    birth: Birth,
    list: NvList,
    names: Vec<&'a str>,
}

impl<'a> Builder<'a> {
    pub(super) fn new(
        libraries: &'static Libraries,
        dataset: &'a str,
        birth: Birth,
    ) -> Result<Self, Error> {
        let list = NvList::new(libraries)
            .map_err(|errno| SysError::new("nvlist_alloc", dataset, errno))?;
        Ok(Self {
            libraries,
            dataset,
            birth,
            list,
            names: Vec::new(),
        })
    }

    /// Adds a native property by its text, or says why ZFS would not take it.
    pub(super) fn native(&mut self, property: &'a str, value: &str) -> Result<(), Error> {
        let bad = |detail: String| Error::BadProperty {
            name: self.dataset.to_owned(),
            property: property.to_owned(),
            value: value.to_owned(),
            detail,
        };
        let nul = |_| bad("holds a NUL".to_owned());
        let name = CString::new(property).map_err(nul)?;
        let text = CString::new(value).map_err(nul)?;
        if self.names.contains(&property) {
            return Err(bad("given twice".to_owned()));
        }
        let prop = self
            .libraries
            .prop(&name)
            .ok_or_else(|| bad("this version of ZFS has no such property".to_owned()))?;
        match (self.birth, self.libraries.is_set_once(prop)) {
            (Birth::New(_), true) => {}
            (Birth::Clone, true) => return Err(bad("a clone has it from its origin".to_owned())),
            (_, false) if self.libraries.can_be_set(prop) => {}
            (_, false) => return Err(bad("is read-only".to_owned())),
        }
        let kind = self.birth.kind();
        if !self.libraries.applies_to(prop, kind) {
            return Err(bad(format!("does not apply to a {}", kind_name(kind))));
        }
        match self.libraries.prop_type(prop) {
            Some(PropType::Number) => {
                let number = number(value).ok_or_else(|| {
                    bad("is not a number of bytes, one with K, M, G, T, P or E, or none".to_owned())
                })?;
                self.add_u64(&name, number)?;
            }
            Some(PropType::Index) => {
                let index = self.libraries.index_of(prop, &text);
                let index = index.ok_or_else(|| {
                    bad(format!("must be one of {}", self.libraries.values(prop)))
                })?;
                self.add_u64(&name, index)?;
            }
            Some(PropType::String) => self.add_string(&name, &text)?,
            None => return Err(bad("has a type that zvolt does not know".to_owned())),
        }
        self.names.push(property);
        Ok(())
    }

    /// Adds a user property.
    pub(super) fn user(&mut self, property: &'a str, value: &str) -> Result<(), Error> {
        let (name, text) = name::user_property(self.dataset, property, value)?;
        self.add_string(&name, &text)?;
        self.names.push(property);
        Ok(())
    }

    fn add_u64(&mut self, name: &CStr, value: u64) -> Result<(), Error> {
        self.list
            .add_u64(name, value)
            .map_err(|errno| SysError::new("nvlist_add_uint64", self.dataset, errno).into())
    }

    fn add_string(&mut self, name: &CStr, value: &CStr) -> Result<(), Error> {
        self.list
            .add_string(name, value)
            .map_err(|errno| SysError::new("nvlist_add_string", self.dataset, errno).into())
    }

    /// The list, and the names in it for an error that the kernel does not explain.
    pub(super) fn finish(self) -> (NvList, String) {
        (self.list, self.names.join(", "))
    }
}

fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Filesystem => "filesystem",
        Kind::Volume => "volume",
    }
}

/// `zfs_nicestrtonum` without its fractions: decimal, with one binary suffix; `none` is 0.
fn number(text: &str) -> Option<u64> {
    if text == "none" {
        return Some(0);
    }
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let shift = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KB" | "KIB" => 10,
        "M" | "MB" | "MIB" => 20,
        "G" | "GB" | "GIB" => 30,
        "T" | "TB" | "TIB" => 40,
        "P" | "PB" | "PIB" => 50,
        "E" | "EB" | "EIB" => 60,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// Everything that is set on or told of an open dataset.
pub(super) fn read(
    dataset: &Dataset<'_>,
    libraries: &'static Libraries,
    own_name: &str,
) -> Properties {
    let mut properties = Properties::new();
    let Some(all) = dataset.properties() else {
        return properties;
    };
    for (property, entry) in all.pairs() {
        let Value::List(entry) = entry else {
            continue;
        };
        let text = if property.contains(':') {
            user_text(entry, own_name)
        } else {
            native_text(libraries, &property, entry)
        };
        if let Some(text) = text {
            properties.insert(property, text);
        }
    }
    // The list has a `type` of its own, a number of the DMU.
    if let Some(kind) = dataset.kind() {
        properties.insert("type".to_owned(), kind_name(kind).to_owned());
    }
    properties
}

/// The user properties in a list of properties.
pub(super) fn user(all: NvRef<'_>, own_name: &str) -> Properties {
    all.pairs()
        .filter(|(property, _)| property.contains(':'))
        .filter_map(|(property, entry)| match entry {
            Value::List(entry) => Some((property, user_text(entry, own_name)?)),
            _ => None,
        })
        .collect()
}

/// A native property that is a number, in a list of properties.
pub(super) fn number_of(all: NvRef<'_>, property: &str) -> Option<u64> {
    match list_of(all, property)?.get("value")? {
        Value::U64(number) => Some(number),
        _ => None,
    }
}

/// The names in a native property that is a list of names; `None` when it is not told.
pub(super) fn names_of(all: NvRef<'_>, property: &str) -> Option<Vec<String>> {
    match list_of(all, property)?.get("value")? {
        Value::List(names) => Some(names.pairs().map(|(name, _)| name).collect()),
        _ => None,
    }
}

fn list_of<'a>(all: NvRef<'a>, property: &str) -> Option<NvRef<'a>> {
    match all.get(property)? {
        Value::List(entry) => Some(entry),
        _ => None,
    }
}

/// Only what was set here counts: an inherited value names an ancestor as its source, a received one
/// is `$recvd` (`ZPROP_SOURCE_VAL_RECVD`), and neither proves whose the dataset is.
fn user_text(entry: NvRef<'_>, own_name: &str) -> Option<String> {
    match (entry.get("value"), entry.get("source")) {
        (Some(Value::Text(value)), Some(Value::Text(source))) if source == own_name => Some(value),
        _ => None,
    }
}

fn native_text(libraries: &Libraries, property: &str, entry: NvRef<'_>) -> Option<String> {
    match entry.get("value")? {
        Value::Text(text) => Some(text),
        Value::U64(number) => {
            let prop = libraries.prop(&CString::new(property).ok()?)?;
            match libraries.prop_type(prop)? {
                PropType::Index => libraries.index_name(prop, number),
                PropType::Number | PropType::String => Some(number.to_string()),
            }
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::number;

    #[test]
    fn numbers_are_bytes_with_binary_suffixes() {
        for (text, value) in [
            ("0", Some(0)),
            ("none", Some(0)),
            ("1073741824", Some(1 << 30)),
            ("16K", Some(16384)),
            ("16k", Some(16384)),
            ("1GiB", Some(1 << 30)),
            ("15E", Some(15 << 60)),
            ("16E", None),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("auto", None),
            ("", None),
            ("-1", None),
            ("+1", None),
            ("1.5G", None),
            ("1 G", None),
            ("1Z", None),
            ("G", None),
        ] {
            assert_eq!(number(text), value, "{text:?}");
        }
    }
}
