//! `zvolt trace`: what the process behind a socket did last, and how long each step took.

use std::convert::Infallible;
use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Uri};
use zvolt_proto::trace::ListOperationsRequest;
use zvolt_proto::trace::trace_client::TraceClient;

use super::waterfall;
use crate::csi::socket::Endpoint;
use crate::csi::trace::from_proto;
use crate::model::names;
use crate::ops::{Journal, Operation, Timeline};

/// An answer may be long: a full journal is a few hundred KiB.
const LONGEST_ANSWER: usize = 64 << 20;
/// How long the process behind the socket may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// What to show.
#[derive(Debug, Args)]
pub(super) struct Options {
    /// Only the operations of this volume
    #[arg(value_name = "VOLUME", value_parser = volume)]
    volume: Option<String>,
    /// Socket of the process to ask
    #[arg(
        long,
        value_name = "SOCKET",
        default_value = "unix:///run/zvolt/csi.sock",
        env = "ZVOLT_ENDPOINT"
    )]
    endpoint: Endpoint,
    /// At most so many operations, the newest; 0 shows all that are kept
    #[arg(long, value_name = "N", default_value_t = 0)]
    limit: u32,
    /// Ask nobody: measure what the timeline itself costs on this machine, in nanoseconds a step
    #[arg(long, conflicts_with_all = ["volume", "limit"])]
    overhead: bool,
    /// How to show them; times in JSON are nanoseconds
    #[arg(long, short, value_enum, default_value = "table")]
    output: Output,
}

/// How operations are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// For people.
    Table,
    /// An array of operations, for programs.
    Json,
}

fn volume(text: &str) -> Result<String, &'static str> {
    if names::is_handle(text) {
        return Ok(text.to_owned());
    }
    Err("a volume handle is needed: 1 to 63 of a-z, 0-9 and '-'")
}

/// Asks, and prints the answer.
pub(super) fn run(options: &Options) -> Result<()> {
    let text = match options.overhead {
        true => format!("{}\n", overhead().as_nanos()),
        false => last(options)?,
    };
    match std::io::stdout().write_all(text.as_bytes()) {
        // `zvolt trace | head` is fine.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        written => written.context("standard output"),
    }
}

/// The last operations of the process behind the socket.
fn last(options: &Options) -> Result<String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let operations = runtime.block_on(ask(options))?;
    Ok(match options.output {
        Output::Json => serde_json::to_string_pretty(&operations)? + "\n",
        Output::Table if operations.is_empty() => "no operations yet\n".to_owned(),
        Output::Table => waterfall::render(&operations),
    })
}

/// What a step costs that does nothing, with its share of its operation's beginning and end.
fn overhead() -> Duration {
    const OPERATIONS: u32 = 10_000;
    const STEPS: u32 = 10;
    let journal = Journal::new(64);
    let begin = Instant::now();
    for _ in 0..OPERATIONS {
        let mut timeline = Timeline::start("overhead", "pvc-overhead", Some(&journal));
        for _ in 0..STEPS {
            let _ = timeline.step("nothing", || Ok::<_, Infallible>(()));
        }
        timeline.finish(Ok(()));
    }
    begin.elapsed() / (OPERATIONS * STEPS)
}

async fn ask(options: &Options) -> Result<Vec<Operation>> {
    let path = options.endpoint.path().to_owned();
    let connector = tower::service_fn(move |_: Uri| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    });
    // The name is not used: the connector knows the way.
    let server = Channel::from_static("http://zvolt").timeout(PATIENCE);
    let channel = server
        .connect_with_connector(connector)
        .await
        .with_context(|| {
            format!(
                "nobody answers at {}: see whether zvolt runs, or give its --endpoint",
                options.endpoint
            )
        })?;
    let mut client = TraceClient::new(channel).max_decoding_message_size(LONGEST_ANSWER);
    let request = ListOperationsRequest {
        volume: options.volume.clone().unwrap_or_default(),
        limit: options.limit,
    };
    match client.list_operations(request).await {
        Ok(answer) => Ok(answer
            .into_inner()
            .operations
            .into_iter()
            .map(from_proto)
            .collect()),
        Err(status) => bail!("{}: {}", status.code(), status.message()),
    }
}
