//! The unix socket: who may connect, and whose it is.

use std::fmt;
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// Longest path of a socket (unix(7): `sun_path` with its NUL).
const PATH_MAX: usize = 107;
/// Who waits in line while we are busy.
const BACKLOG: i32 = 128;

/// A CSI endpoint: a unix socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint(PathBuf);

impl Endpoint {
    /// The socket's path.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unix://{}", self.0.display())
    }
}

impl FromStr for Endpoint {
    type Err = String;

    /// `unix:///path`, `unix:/path` or `/path`.
    fn from_str(text: &str) -> Result<Self, String> {
        let path = text
            .strip_prefix("unix://")
            .or_else(|| text.strip_prefix("unix:"))
            .unwrap_or(text);
        if !path.starts_with('/') || path.ends_with('/') || path.chars().any(char::is_control) {
            return Err(format!(
                "{text:?} is no unix socket: give an absolute path, unix:///run/zvolt/csi.sock"
            ));
        }
        if path.len() > PATH_MAX {
            return Err(format!(
                "a socket's path has at most {PATH_MAX} bytes, this one has {}",
                path.len()
            ));
        }
        Ok(Self(path.into()))
    }
}

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another process serves there.
    #[error("another process listens on {0}: stop it, or choose another --endpoint")]
    Taken(PathBuf),
    /// Something that is no socket.
    #[error(
        "{0} exists and is no socket: it is left alone; remove it, or choose another --endpoint"
    )]
    NoSocket(PathBuf),
    /// A system call failed.
    #[error("{call} {path}: {source}")]
    Sys {
        /// System call.
        call: &'static str,
        /// What it was about.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

fn sys<E: Into<io::Error>>(call: &'static str, path: &Path) -> impl FnOnce(E) -> Error {
    move |source| Error::Sys {
        call,
        path: path.to_owned(),
        source: source.into(),
    }
}

/// A socket that listens. Dropped, it takes its file with it, if that is still its own.
#[derive(Debug)]
pub struct Listening {
    listener: UnixListener,
    path: PathBuf,
    inode: (u64, u64),
}

impl Listening {
    /// Listens at `endpoint`, for its owner only (mode 0600). A socket on which nobody listens is replaced.
    pub fn bind(endpoint: &Endpoint) -> Result<Self, Error> {
        let path = endpoint.path();
        let dir = path.parent().unwrap_or(Path::new("/"));
        let mut builder = std::fs::DirBuilder::new();
        builder.recursive(true).mode(0o755);
        builder.create(dir).map_err(sys("mkdir", dir))?;
        // Two that start at once must not both find a stale socket: the second would remove the first's new one.
        let guard = rustix::fs::open(
            dir,
            OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )
        .map_err(sys("open", dir))?;
        rustix::fs::flock(&guard, FlockOperation::LockExclusive).map_err(sys("flock", dir))?;
        clear(path)?;
        let socket = rustix::net::socket_with(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )
        .map_err(sys("socket", path))?;
        // A socket's own mode becomes its file's at bind: there is no moment at which others may connect.
        rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR).map_err(sys("fchmod", path))?;
        let address = SocketAddrUnix::new(path).map_err(sys("bind", path))?;
        rustix::net::bind(&socket, &address).map_err(sys("bind", path))?;
        let file = std::fs::symlink_metadata(path).map_err(sys("lstat", path))?;
        rustix::net::listen(&socket, BACKLOG).map_err(sys("listen", path))?;
        Ok(Self {
            listener: socket.into(),
            path: path.to_owned(),
            inode: (file.dev(), file.ino()),
        })
    }

    /// The listener, for the runtime.
    pub fn listener(&self) -> Result<tokio::net::UnixListener, Error> {
        let listener = self.listener.try_clone().map_err(sys("dup", &self.path))?;
        listener
            .set_nonblocking(true)
            .map_err(sys("fcntl", &self.path))?;
        tokio::net::UnixListener::from_std(listener).map_err(sys("epoll_ctl", &self.path))
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let is_ours = std::fs::symlink_metadata(&self.path)
            .is_ok_and(|file| (file.dev(), file.ino()) == self.inode);
        if is_ours {
            // Left there it does no harm: the next start replaces it.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Removes a socket that nobody listens on.
fn clear(path: &Path) -> Result<(), Error> {
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(sys("lstat", path)(error)),
        Ok(file) if !file.file_type().is_socket() => return Err(Error::NoSocket(path.to_owned())),
        Ok(_) => {}
    }
    match UnixStream::connect(path) {
        Ok(_) => Err(Error::Taken(path.to_owned())),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path).map_err(sys("unlink", path))
        }
        Err(error) => Err(sys("connect", path)(error)),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn endpoints_are_unix_sockets() {
        for text in ["unix:///run/x.sock", "unix:/run/x.sock", "/run/x.sock"] {
            assert_eq!(
                text.parse::<Endpoint>().unwrap().path(),
                Path::new("/run/x.sock")
            );
        }
        for bad in [
            "",
            "tcp://0.0.0.0:1",
            "x.sock",
            "unix://x.sock",
            "unix:///run/",
            "/a\nb",
            &format!("/{}", "x".repeat(107)),
        ] {
            assert!(bad.parse::<Endpoint>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_socket_is_its_owners_and_goes_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new/csi.sock");
        let endpoint: Endpoint = path.to_str().unwrap().parse().unwrap();
        let listening = Listening::bind(&endpoint).unwrap();
        assert_eq!(
            std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        assert!(matches!(Listening::bind(&endpoint), Err(Error::Taken(_))));
        assert!(UnixStream::connect(&path).is_ok(), "the first one goes on");
        drop(listening);
        assert!(!path.exists());
    }

    #[test]
    fn a_stale_socket_is_replaced_and_anything_else_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("csi.sock");
        let endpoint: Endpoint = path.to_str().unwrap().parse().unwrap();
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "std leaves it behind");
        let listening = Listening::bind(&endpoint).unwrap();
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "precious").unwrap();
        assert!(matches!(
            Listening::bind(&endpoint),
            Err(Error::NoSocket(_))
        ));
        drop(listening);
        assert_eq!(
            std::fs::read_to_string(&path).unwrap(),
            "precious",
            "what is not ours stays"
        );
    }
}
