//! The command line: one file a subcommand.

mod notify;
mod options;
mod serve;
mod trace;
mod waterfall;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use crate::model::parameters;
use crate::telemetry;

/// How a command ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Exit {
    /// All is well.
    Fine = 0,
    /// It failed.
    Failed = 1,
    /// The command line is wrong; clap's own code.
    Usage = 2,
    /// This machine cannot serve.
    Preflight = 3,
}

/// A CSI driver for bare metal: ZFS volumes over NVMe/TCP, straight through the kernel.
#[derive(Debug, Parser)]
#[command(
    name = "zvolt",
    version,
    max_term_width = 100,
    after_help = "\
Exit status: 0 fine, 1 failed, 2 wrong usage, 3 this machine lacks something (it says what to do).

Environment: every option that serves has a variable, named in its help; RUST_LOG filters the log
(for example RUST_LOG=zvolt=debug)."
)]
struct Cli {
    /// What a log line looks like
    #[arg(
        long,
        global = true,
        value_enum,
        default_value = "text",
        env = "ZVOLT_LOG_FORMAT"
    )]
    log_format: telemetry::Format,
    #[command(subcommand)]
    mode: Mode,
}

const STANDALONE: &str = "\
Example, on the storage host:
    zvolt standalone --node-id storage0 --portal 10.0.0.1:4420 --portal '[fd00::1]:4420'

Needs root, ZFS, and the modules nvmet, nvmet-tcp and nvme-tcp.";

const CONTROLLER: &str = "\
Example, beside the orchestrator's sidecars:
    zvolt controller --namespace zvolt-system --endpoint unix:///run/zvolt/controller.sock

    zvolt trace --endpoint unix:///run/zvolt/controller.sock

Needs no root; in the cluster the definitions, and the rights that the chart gives to the account zvolt-controller. Any
number of them may serve one namespace.";

#[derive(Debug, Subcommand)]
enum Mode {
    /// Controller, agent and node in one process, on an embedded store: no Kubernetes needed
    #[command(after_help = STANDALONE, after_long_help = format!("{STANDALONE}\n\n{}", parameters::help()))]
    Standalone(options::Standalone),
    /// The controller of a cluster: it writes what is wanted into the Kubernetes API, and touches no kernel
    #[command(after_help = CONTROLLER, after_long_help = format!("{CONTROLLER}\n\n{}", parameters::help()))]
    Controller(options::Controller),
    /// The agent of a storage host in a cluster: it makes true what is wanted of its pools
    #[command(after_help = "\
Example, on every storage host:
    zvolt agent --node-id storage0 --portal 10.0.0.1:4420 --namespace zvolt-system --kubeconfig /etc/zvolt/agent.kubeconfig

    zvolt trace --endpoint unix:///run/zvolt/agent.sock

Needs root, ZFS, and the modules nvmet and nvmet-tcp; in the cluster the definitions, and the rights that the chart gives
to the account zvolt-agent. One agent a host.")]
    Agent(options::Agent),
    /// A consumer: attach, mount, publish
    #[command(after_help = "\
Example, on every machine that uses volumes:
    zvolt node --node-id node0 --endpoint unix:///run/zvolt/csi.sock

Needs root and the module nvme-tcp.")]
    Node(options::Node),
    /// The timeline of the last operations, step by step
    #[command(after_help = "\
Examples:
    zvolt trace
    zvolt trace pvc-9f4e8c1a-3c75-4d1b-8a57-0d2f6b1f7f10 --output json
    zvolt trace --overhead")]
    Trace(trace::Options),
}

/// What the command line may say.
pub fn command() -> clap::Command {
    Cli::command()
}

/// Runs what the command line says.
pub fn run() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // A closed pipe is nobody's trouble.
            let _ = error.print();
            return exit(if error.use_stderr() {
                Exit::Usage
            } else {
                Exit::Fine
            });
        }
    };
    let outcome = match cli.mode {
        Mode::Standalone(options) => {
            telemetry::start(cli.log_format);
            serve::standalone(options)
        }
        Mode::Controller(options) => {
            telemetry::start(cli.log_format);
            serve::controller(options)
        }
        Mode::Agent(options) => {
            telemetry::start(cli.log_format);
            serve::agent(options)
        }
        Mode::Node(options) => {
            telemetry::start(cli.log_format);
            serve::node(options)
        }
        Mode::Trace(options) => trace::run(&options).map(|()| Exit::Fine),
    };
    exit(outcome.unwrap_or_else(|error| {
        eprintln!("zvolt: {error:#}");
        Exit::Failed
    }))
}

fn exit(code: Exit) -> ExitCode {
    ExitCode::from(code as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_holds_together() {
        command().debug_assert();
    }

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(line.split_whitespace())
    }

    #[test]
    fn standalone_takes_several_portals_and_needs_one() {
        let cli = parse("zvolt standalone --node-id s0 --portal 10.0.0.1:4420 --portal [fd00::1]:4420 --store /s").unwrap();
        let Mode::Standalone(options) = cli.mode else {
            panic!("standalone")
        };
        assert_eq!(options.storage.portals.len(), 2);
        assert!(parse("zvolt standalone --node-id s0").is_err());
        assert!(parse("zvolt standalone --node-id s0 --portal 10.0.0.1").is_err());
        assert!(
            parse("zvolt standalone --node-id s0 --portal 0.0.0.0:4420").is_err(),
            "nobody can connect there"
        );
    }

    #[test]
    fn the_modes_of_a_cluster_need_its_namespace_and_have_no_store_of_their_own() {
        let cli = parse("zvolt controller --namespace zvolt --consumer n0,n1").unwrap();
        let Mode::Controller(options) = cli.mode else {
            panic!("controller")
        };
        assert_eq!(options.consumers.consumers, ["n0", "n1"]);
        assert_eq!(options.cluster.kubeconfig, None);
        let cli = parse(
            "zvolt agent --node-id s0 --portal 10.0.0.1:4420 --namespace zvolt --kubeconfig /k",
        );
        let Mode::Agent(options) = cli.unwrap().mode else {
            panic!("agent")
        };
        assert_eq!(options.cluster.namespace, "zvolt");
        for bad in [
            "zvolt controller",
            "zvolt controller --namespace zvolt --store /s",
            "zvolt controller --namespace zvolt --portal 10.0.0.1:4420",
            "zvolt agent --node-id s0 --portal 10.0.0.1:4420",
            "zvolt agent --node-id s0 --namespace zvolt",
            "zvolt agent --portal 10.0.0.1:4420 --namespace zvolt --consumer n0",
            "zvolt node --node-id n --namespace zvolt",
            "zvolt standalone --node-id s0 --portal 10.0.0.1:4420 --namespace zvolt",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn hostile_options_are_refused() {
        for bad in [
            "zvolt controller --namespace a/b",
            "zvolt controller --namespace ..",
            "zvolt controller --namespace A",
            "zvolt controller --namespace a?watch=true",
            "zvolt controller --namespace n --kubeconfig relative",
            "zvolt controller --namespace n --kubeconfig /a/../b",
            "zvolt controller --namespace n --kubeconfig /a/",
            "zvolt controller --namespace n --endpoint tcp://1.2.3.4:5",
            "zvolt controller --namespace n --consumer a/b",
            "zvolt controller --namespace n --rpc-timeout 0",
            "zvolt agent --node-id a/b --portal 10.0.0.1:1 --namespace n",
            "zvolt agent --node-id s --portal 0.0.0.0:1 --namespace n",
            "zvolt agent --node-id s --portal 10.0.0.1:1 --namespace n --parallel 0",
            "zvolt node --node-id a/b",
            "zvolt node --node-id n --endpoint tcp://1.2.3.4:5",
            "zvolt node --node-id n --kubelet-dir relative",
            "zvolt node --node-id n --kubelet-dir /a/../b",
            "zvolt node --node-id n --keep-alive-tmo 0",
            "zvolt node --node-id n --rpc-timeout 0",
            "zvolt node --node-id n --fast-io-fail-tmo -2",
            "zvolt node --portal 10.0.0.1:1",
            "zvolt trace ../x",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        let cli = parse("zvolt node --node-id n --fast-io-fail-tmo -1 --nr-io-queues 0").unwrap();
        let Mode::Node(options) = cli.mode else {
            panic!("node")
        };
        assert_eq!(
            options.config().nr_io_queues,
            None,
            "0 leaves it to the kernel"
        );
    }
}
