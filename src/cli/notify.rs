//! Tells the service manager how things are: one datagram, as sd_notify(3) has it.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Everything is up.
pub(super) const READY: &str = "READY=1";
/// The end has begun.
pub(super) const STOPPING: &str = "STOPPING=1";

/// Sends `state` when the service manager wants to know.
pub(super) fn notify(state: &str) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    if let Err(error) = send(&socket, state) {
        tracing::warn!(?socket, state, %error, "the service manager could not be told");
    }
}

fn send(socket: &OsStr, state: &str) -> io::Result<()> {
    let address = match socket.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(socket)?,
    };
    let sent = UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address)?;
    if sent == state.len() {
        Ok(())
    } else {
        Err(io::ErrorKind::WriteZero.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_datagram_arrives_by_path_and_by_abstract_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let name = format!("zvolt-test-{}", std::process::id());
        let by_name = SocketAddr::from_abstract_name(&name).unwrap();
        let receivers = [
            (UnixDatagram::bind(&path).unwrap(), path.into_os_string()),
            (
                UnixDatagram::bind_addr(&by_name).unwrap(),
                format!("@{name}").into(),
            ),
        ];
        for (receiver, socket) in receivers {
            send(&socket, READY).unwrap();
            let mut buffer = [0; 32];
            let length = receiver.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..length], READY.as_bytes());
        }
    }
}
