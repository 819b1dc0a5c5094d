//! The private network: an Ethernet hub in user space between the machines' cards. It needs no
//! privilege, exists only as long as the lab, and can lose what a machine sends and is sent.
//!
//! QEMU's end is `-netdev socket,fd=N`: each frame after its length in four bytes, big endian.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// The largest frame that a card may send (its offloads may make one of up to 64 KiB).
const MAX_FRAME: usize = 68 * 1024;
/// How long a frame may wait for a machine that does not take it, in milliseconds. Then it is lost.
const PATIENCE_MS: u16 = 50;

/// The first five bytes of every card on the network; the last one is the machine's number.
pub const MAC_PREFIX: [u8; 5] = [0x52, 0x54, 0x00, 0x77, 0x00];

#[derive(Debug, Default)]
struct Port {
    number: u8,
    cut: AtomicBool,
    stream: Mutex<Option<UnixStream>>,
}

/// The hub.
#[derive(Debug, Clone)]
pub struct Hub {
    ports: Arc<Vec<Port>>,
}

impl Hub {
    /// A hub for machines with these numbers.
    pub fn new(numbers: impl IntoIterator<Item = u8>) -> Self {
        let ports = numbers
            .into_iter()
            .map(|number| Port {
                number,
                ..Port::default()
            })
            .collect();
        Self {
            ports: Arc::new(ports),
        }
    }

    /// Plugs a machine in; gives the end for its card, which closes on exec like every other.
    pub fn plug(&self, number: u8) -> io::Result<OwnedFd> {
        let (ours, theirs) = UnixStream::pair()?;
        let Some(place) = self.ports.iter().position(|p| p.number == number) else {
            return Err(io::Error::new(io::ErrorKind::NotFound, "no such port"));
        };
        let reader = ours.try_clone()?;
        *self.ports[place]
            .stream
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(ours);
        let hub = self.clone();
        thread::Builder::new()
            .name(format!("hub-{number}"))
            .spawn(move || hub.carry(place, reader))?;
        Ok(theirs.into())
    }

    /// From now on every frame from and to a machine is lost, as behind a dead switch: its card keeps
    /// its carrier.
    pub fn cut(&self, number: u8, cut: bool) {
        for port in self.ports.iter().filter(|p| p.number == number) {
            port.cut.store(cut, Ordering::SeqCst);
        }
    }

    /// Carries a machine's frames until its card goes.
    fn carry(&self, from: usize, mut reader: UnixStream) {
        let mut buffer = vec![0; 4 + MAX_FRAME];
        loop {
            let mut length = [0; 4];
            if reader.read_exact(&mut length).is_err() {
                return;
            }
            let size = u32::from_be_bytes(length) as usize;
            if size > MAX_FRAME {
                return;
            }
            let message = &mut buffer[..4 + size];
            message[..4].copy_from_slice(&length);
            if reader.read_exact(&mut message[4..]).is_err() {
                return;
            }
            if size >= 6 && !self.ports[from].cut.load(Ordering::Relaxed) {
                self.deliver(from, message);
            }
        }
    }

    fn deliver(&self, from: usize, message: &[u8]) {
        let destination = &message[4..10];
        let known = (destination[..5] == MAC_PREFIX)
            .then(|| self.ports.iter().position(|p| p.number == destination[5]))
            .flatten();
        for (place, port) in self.ports.iter().enumerate() {
            let meant = known.is_none_or(|k| k == place);
            if meant && place != from && !port.cut.load(Ordering::Relaxed) {
                port.send(message);
            }
        }
    }
}

impl Port {
    fn send(&self, message: &[u8]) {
        let mut slot = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(stream) = slot.as_mut() else { return };
        // A stream socket that polls writable has more room than a frame needs, so that the write
        // below neither blocks nor is short.
        let mut waiting = [PollFd::new(stream.as_fd(), PollFlags::POLLOUT)];
        if !matches!(poll(&mut waiting, PollTimeout::from(PATIENCE_MS)), Ok(1)) {
            return;
        }
        if stream.write_all(message).is_err() {
            *slot = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn card(hub: &Hub, number: u8) -> UnixStream {
        let stream = UnixStream::from(hub.plug(number).unwrap());
        stream
            .set_read_timeout(Some(Duration::from_millis(300)))
            .unwrap();
        stream
    }

    fn frame(to: u8, text: &[u8]) -> Vec<u8> {
        let mut frame = MAC_PREFIX.to_vec();
        frame.push(to);
        frame.extend(text);
        let mut message = u32::try_from(frame.len()).unwrap().to_be_bytes().to_vec();
        message.extend(frame);
        message
    }

    fn receive(card: &mut UnixStream) -> Option<Vec<u8>> {
        let mut length = [0; 4];
        card.read_exact(&mut length).ok()?;
        let mut frame = vec![0; u32::from_be_bytes(length) as usize];
        card.read_exact(&mut frame).unwrap();
        Some(frame[6..].to_vec())
    }

    #[test]
    fn a_frame_reaches_its_machine_only_and_a_broadcast_all_others() {
        let hub = Hub::new([1, 2, 3]);
        let (mut one, mut two, mut three) = (card(&hub, 1), card(&hub, 2), card(&hub, 3));
        one.write_all(&frame(2, b"hello")).unwrap();
        assert_eq!(receive(&mut two).unwrap(), b"hello");
        assert_eq!(receive(&mut three), None);
        let mut broadcast = frame(0, b"all");
        broadcast[4..10].fill(0xff);
        one.write_all(&broadcast).unwrap();
        assert_eq!(receive(&mut two).unwrap(), b"all");
        assert_eq!(receive(&mut three).unwrap(), b"all");
        assert_eq!(receive(&mut one), None, "nobody hears itself");
    }

    #[test]
    fn a_cut_loses_frames_both_ways_until_it_is_restored() {
        let hub = Hub::new([1, 2]);
        let (mut one, mut two) = (card(&hub, 1), card(&hub, 2));
        hub.cut(2, true);
        one.write_all(&frame(2, b"lost")).unwrap();
        two.write_all(&frame(1, b"lost")).unwrap();
        assert_eq!((receive(&mut one), receive(&mut two)), (None, None));
        hub.cut(2, false);
        one.write_all(&frame(2, b"back")).unwrap();
        assert_eq!(receive(&mut two).unwrap(), b"back");
    }

    #[test]
    fn a_machine_that_takes_nothing_does_not_stop_the_others() {
        let hub = Hub::new([1, 2, 3]);
        let (mut one, _stuck, mut three) = (card(&hub, 1), card(&hub, 2), card(&hub, 3));
        three
            .set_read_timeout(Some(Duration::from_secs(5)))
            .unwrap();
        let big = vec![0; 60_000];
        for _ in 0..10 {
            one.write_all(&frame(2, &big)).unwrap();
        }
        one.write_all(&frame(3, b"on")).unwrap();
        assert_eq!(receive(&mut three).unwrap(), b"on");
    }
}
