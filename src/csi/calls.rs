//! What every call has in common: a span, a deadline, its volume's lock, and an answer in time (rule 10).

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio::task::JoinError;
use tokio::time::timeout_at;
use tonic::metadata::MetadataMap;
use tonic::{Code, Request, Response, Status};
use tracing::{Instrument, Span};

use super::status::{Kind, Refusal};
use crate::model::names::CSI_STRING_MAX;
use crate::ops::locks::Locks;

/// No call may take longer, whatever its client says.
const LONGEST: Duration = Duration::from_secs(3600);

/// The calls of one service, which share their volumes' locks.
#[derive(Debug, Clone)]
pub(super) struct Calls {
    default: Duration,
    locks: Locks,
    running: Running,
    count: Arc<AtomicU64>,
}

/// Held by everything that runs. Once all are dropped, the receiver's end says so.
pub(super) type Running = mpsc::Sender<std::convert::Infallible>;

type Answer<T> = Pin<Box<dyn Future<Output = Result<T, Refusal>> + Send>>;
type Begin<T> = Box<dyn FnOnce(Instant) -> Answer<T> + Send>;

/// What a checked request asks for.
pub(super) enum Work<T> {
    /// Nothing: this is the answer.
    Done(T),
    /// Something to do.
    Begin {
        /// What nobody else may touch meanwhile, as messages call it: `volume pvc-1`. Nothing for what only
        /// reads.
        busy: Option<String>,
        /// Gets the moment by which it must have ended.
        begin: Begin<T>,
    },
}

impl<T> Work<T> {
    /// On a volume that nobody else may touch meanwhile.
    pub(super) fn on<F>(volume: String, begin: impl FnOnce(Instant) -> F + Send + 'static) -> Self
    where
        F: Future<Output = Result<T, Refusal>> + Send + 'static,
    {
        Self::begin(Some(format!("volume {volume}")), begin)
    }

    /// On a snapshot, or a group of them, by the name of its object. Other calls for its volumes go on.
    pub(super) fn on_snapshot<F>(
        object: &str,
        begin: impl FnOnce(Instant) -> F + Send + 'static,
    ) -> Self
    where
        F: Future<Output = Result<T, Refusal>> + Send + 'static,
    {
        Self::begin(Some(format!("snapshot {object}")), begin)
    }

    /// Reads only: nothing is locked.
    pub(super) fn reading<F>(begin: impl FnOnce(Instant) -> F + Send + 'static) -> Self
    where
        F: Future<Output = Result<T, Refusal>> + Send + 'static,
    {
        Self::begin(None, begin)
    }

    fn begin<F>(busy: Option<String>, begin: impl FnOnce(Instant) -> F + Send + 'static) -> Self
    where
        F: Future<Output = Result<T, Refusal>> + Send + 'static,
    {
        Self::Begin {
            busy,
            begin: Box::new(|deadline| Box::pin(begin(deadline))),
        }
    }
}

/// The moments of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Limits {
    /// By now the work should have ended by itself.
    work: Instant,
    /// By now the answer is sent, so that it arrives before the client gives up.
    answer: Instant,
}

impl Limits {
    fn new(received: Instant, patience: Duration) -> Self {
        let margin = (patience / 20)
            .clamp(Duration::from_millis(50), Duration::from_secs(1))
            .min(patience / 4);
        Self {
            work: received + (patience - 2 * margin),
            answer: received + (patience - margin),
        }
    }
}

impl Calls {
    /// `default` is the deadline of a call whose client names none.
    pub(super) fn new(default: Duration, running: Running) -> Self {
        Self {
            default: default.min(LONGEST),
            locks: Locks::default(),
            running,
            count: Arc::default(),
        }
    }

    /// Answers one call: `begin` checks the request and says what is to be done.
    pub(super) async fn serve<M, T: Send + 'static>(
        &self,
        method: &'static str,
        request: Request<M>,
        volume: impl FnOnce(&M) -> &str,
        begin: impl FnOnce(M) -> Result<Work<T>, Refusal>,
    ) -> Result<Response<T>, Status> {
        let received = Instant::now();
        let patience = patience(request.metadata())
            .unwrap_or(self.default)
            .min(LONGEST);
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        let message = request.into_inner();
        // The volume is not checked yet: escaped, and no longer than CSI allows.
        let volume: String = volume(&message)
            .escape_debug()
            .take(CSI_STRING_MAX)
            .collect();
        let span = tracing::info_span!("rpc", method, volume, request = number);
        async {
            let (outcome, weight) = match begin(message) {
                Ok(Work::Done(answer)) => (Ok(answer), Weight::Light),
                Ok(Work::Begin { busy, begin }) => {
                    let limits = Limits::new(received, patience);
                    let weight = match busy {
                        Some(_) => Weight::Heavy,
                        None => Weight::Light,
                    };
                    (self.run(method, busy, limits, begin).await, weight)
                }
                Err(refusal) => (Err(refusal), Weight::Heavy),
            };
            self.log(&outcome, weight, received.elapsed());
            outcome.map(Response::new).map_err(Status::from)
        }
        .instrument(span)
        .await
    }

    /// Logs once the answer is on its way: a pod's start does not wait for the log's reader.
    fn log<T>(&self, outcome: &Result<T, Refusal>, weight: Weight, took: Duration) {
        let (outcome, running) = (
            outcome.as_ref().map(drop).map_err(Refusal::clone),
            self.running.clone(),
        );
        let logged = async move {
            let _running = running;
            log(outcome, weight, took);
        };
        tokio::spawn(logged.instrument(Span::current()));
    }

    /// Runs the work in its own task: a client that goes away, or a kernel that does not answer, must not
    /// free the volume for another call.
    async fn run<T: Send + 'static>(
        &self,
        method: &str,
        busy: Option<String>,
        limits: Limits,
        begin: Begin<T>,
    ) -> Result<T, Refusal> {
        let held = match &busy {
            Some(busy) => Some(self.locks.take(busy).ok_or_else(|| {
                Refusal::new(
                    Kind::Aborted,
                    format!("another call for {busy} is running: try again when it has ended"),
                )
            })?),
            None => None,
        };
        let work = begin(limits.work);
        let running = self.running.clone();
        let task = tokio::spawn(
            async move {
                let _held = (held, running);
                work.await
            }
            .instrument(Span::current()),
        );
        match timeout_at(limits.answer.into(), task).await {
            Ok(ended) => ended.unwrap_or_else(|error| Err(panicked(&error))),
            Err(_) => Err(Refusal::new(
                Kind::DeadlineExceeded,
                match busy {
                    Some(busy) => format!(
                        "{method} for {busy} has not ended in time and goes on: a retry gets ABORTED until it has, \
                         then finds out what is left to do"
                    ),
                    None => format!("{method} has not ended in time: try again"),
                },
            )),
        }
    }
}

/// What a task that did not end says.
pub(super) fn panicked(error: &JoinError) -> Refusal {
    Refusal::new(
        Kind::Internal,
        format!("the call failed: {error}; see the log"),
    )
}

enum Weight {
    Light,
    Heavy,
}

/// An error is logged once, here.
fn log(outcome: Result<(), Refusal>, weight: Weight, took: Duration) {
    let ms = took.as_secs_f64() * 1e3;
    match (outcome, weight) {
        (Ok(()), Weight::Light) => tracing::debug!(ms, "done"),
        (Ok(()), Weight::Heavy) => tracing::info!(ms, "done"),
        (Err(refusal), _) => {
            let error = refusal.to_string();
            let code = Status::from(refusal).code();
            if code == Code::Internal {
                tracing::error!(ms, ?code, error, "failed");
            } else {
                tracing::warn!(ms, ?code, error, "refused");
            }
        }
    }
}

/// The deadline that the client has set (gRPC over HTTP/2, "Timeout"): up to 8 digits and a unit.
fn patience(metadata: &MetadataMap) -> Option<Duration> {
    let text = metadata.get("grpc-timeout")?.to_str().ok()?;
    let unit = text.chars().last()?;
    let digits = text.strip_suffix(unit)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let count = digits.parse().ok()?;
    Some(match unit {
        'H' => Duration::from_secs(count * 3600),
        'M' => Duration::from_secs(count * 60),
        'S' => Duration::from_secs(count),
        'm' => Duration::from_millis(count),
        'u' => Duration::from_micros(count),
        'n' => Duration::from_nanos(count),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls() -> (Calls, mpsc::Receiver<std::convert::Infallible>) {
        let (running, ended) = mpsc::channel(1);
        (Calls::new(Duration::from_secs(60), running), ended)
    }

    fn request(timeout: &str) -> Request<()> {
        let mut request = Request::new(());
        request
            .metadata_mut()
            .insert("grpc-timeout", timeout.parse().unwrap());
        request
    }

    async fn call<T: Send + 'static>(
        calls: &Calls,
        timeout: &str,
        work: Work<T>,
    ) -> Result<Response<T>, Status> {
        calls
            .serve("Test", request(timeout), |()| "v", |()| Ok(work))
            .await
    }

    #[test]
    fn timeouts_of_grpc() {
        for (text, expected) in [
            ("1H", Some(Duration::from_secs(3600))),
            ("2M", Some(Duration::from_secs(120))),
            ("00000003S", Some(Duration::from_secs(3))),
            ("4m", Some(Duration::from_millis(4))),
            ("5u", Some(Duration::from_micros(5))),
            ("6n", Some(Duration::from_nanos(6))),
            ("", None),
            ("S", None),
            ("1", None),
            ("-1S", None),
            ("+1S", None),
            ("123456789S", None),
            ("1X", None),
        ] {
            assert_eq!(patience(request(text).metadata()), expected, "{text:?}");
        }
        assert_eq!(patience(&MetadataMap::new()), None);
    }

    #[test]
    fn the_answer_leaves_before_the_client_gives_up() {
        let now = Instant::now();
        for patience in [
            Duration::ZERO,
            Duration::from_millis(1),
            Duration::from_secs(5),
            LONGEST,
        ] {
            let limits = Limits::new(now, patience);
            assert!(limits.work <= limits.answer && limits.answer <= now + patience);
        }
        let limits = Limits::new(now, Duration::from_secs(60));
        assert_eq!(limits.answer, now + Duration::from_secs(59));
    }

    #[tokio::test]
    async fn rule_10_a_stuck_call_is_answered_in_time_and_keeps_its_volume() {
        let (mut calls, mut ended) = calls();
        let (free, stuck) = tokio::sync::oneshot::channel::<()>();
        let work = Work::on("v".into(), |_| async move {
            let _ = stuck.await;
            Ok(())
        });
        let begin = Instant::now();
        let status = call(&calls, "200m", work).await.unwrap_err();
        assert_eq!(status.code(), Code::DeadlineExceeded);
        assert!(
            begin.elapsed() < Duration::from_millis(200),
            "{:?}",
            begin.elapsed()
        );
        let second = call(&calls, "1S", Work::on("v".into(), |_| async { Ok(()) }))
            .await
            .unwrap_err();
        assert_eq!(second.code(), Code::Aborted);
        assert!(
            second.message().contains("volume v"),
            "{}",
            second.message()
        );
        call(&calls, "1S", Work::on("w".into(), |_| async { Ok(()) }))
            .await
            .expect("others go on");
        free.send(()).unwrap();
        // All that runs is counted: once it has ended, the volume is free.
        let (running, _later) = mpsc::channel(1);
        calls.running = running;
        assert!(ended.recv().await.is_none());
        call(&calls, "1S", Work::on("v".into(), |_| async { Ok(()) }))
            .await
            .expect("free again");
    }

    #[tokio::test]
    async fn volumes_snapshots_and_readers_do_not_wait_for_each_other() {
        let (calls, _ended) = calls();
        let (_free, stuck) = tokio::sync::oneshot::channel::<()>();
        let work = Work::on("v".into(), |_| async move {
            let _ = stuck.await;
            Ok(())
        });
        let late = call(&calls, "50m", work).await.unwrap_err();
        assert_eq!(late.code(), Code::DeadlineExceeded);
        call(&calls, "1S", Work::on_snapshot("v", |_| async { Ok(()) }))
            .await
            .expect("a snapshot of that name is something else");
        call(&calls, "1S", Work::reading(|_| async { Ok(()) }))
            .await
            .expect("who reads waits for nobody");
    }

    #[tokio::test]
    async fn a_panic_is_an_internal_error_and_frees_the_volume() {
        let (calls, _ended) = calls();
        let work: Work<()> = Work::on("v".into(), |_| async { panic!("no") });
        assert_eq!(
            call(&calls, "1S", work).await.unwrap_err().code(),
            Code::Internal
        );
        call(&calls, "1S", Work::on("v".into(), |_| async { Ok(()) }))
            .await
            .expect("free");
    }

    #[tokio::test]
    async fn an_absurd_timeout_overflows_nothing() {
        let (calls, _ended) = calls();
        call(
            &calls,
            "99999999H",
            Work::on("v".into(), |_| async { Ok(()) }),
        )
        .await
        .expect("fine");
    }
}
