//! What every room says when a system call fails.

use std::fmt;
use std::path::Path;

pub use nix::errno::Errno;

/// One failed system call: which call, on what, and the errno.
///
/// Display gives all three, so that an operator knows the next command to type:
/// `write /sys/kernel/config/nvmet/…/enable: ENOENT (No such file or directory)`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SysError {
    /// The system call or library function, e.g. `write`, `move_mount`, `ioctl(BLKZNAME)`.
    pub call: &'static str,
    /// What it was applied to: a path, a dataset, an NQN.
    pub subject: String,
    /// The error number.
    pub errno: Errno,
    /// What the kernel or library added in words (fs-context log, libzfs description); may be empty.
    pub detail: String,
}

impl SysError {
    /// The error of `call` on `subject`.
    pub fn new(call: &'static str, subject: impl fmt::Display, errno: Errno) -> Self {
        Self {
            call,
            subject: subject.to_string(),
            errno,
            detail: String::new(),
        }
    }

    /// The error of `call` on `path`, with the errno out of an [`std::io::Error`] (`EIO` when it has none).
    pub fn io(call: &'static str, path: &Path, error: &std::io::Error) -> Self {
        let errno = Errno::from_raw(error.raw_os_error().unwrap_or(nix::libc::EIO));
        Self::new(call, path.display(), errno)
    }

    /// The same error with the kernel's or the library's own words added.
    #[must_use]
    pub fn with_detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = detail.into();
        self
    }
}

impl fmt::Display for SysError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {}: {:?} ({})",
            self.call,
            self.subject,
            self.errno,
            self.errno.desc()
        )?;
        if !self.detail.is_empty() {
            write!(f, ": {}", self.detail)?;
        }
        Ok(())
    }
}

impl std::error::Error for SysError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_the_call_the_subject_and_the_errno() {
        let error = SysError::new("mount", "/dev/zd0", Errno::EBUSY).with_detail("in use by dm-0");
        assert_eq!(
            error.to_string(),
            "mount /dev/zd0: EBUSY (Device or resource busy): in use by dm-0"
        );
    }
}
