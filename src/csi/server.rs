//! The gRPC server: which services a process has, and how it stops.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use zvolt_proto::csi::controller_server::ControllerServer;
use zvolt_proto::csi::group_controller_server::GroupControllerServer;
use zvolt_proto::csi::identity_server::IdentityServer;
use zvolt_proto::csi::node_server::NodeServer;
use zvolt_proto::trace::trace_server::TraceServer;

use super::calls::Calls;
use super::controller::{Controller, ControllerService, Site};
use super::group::GroupService;
use super::identity::{self, IdentityService};
use super::node::NodeService;
use super::socket::{self, Listening};
use super::trace::TraceService;
use crate::node::Node;
use crate::ops::Journal;
use crate::store::Store;

/// What one process serves: the Trace service, and these. Identity comes with any of them.
#[derive(Debug)]
pub struct Services<S> {
    /// The Controller services.
    pub controller: Option<ControllerSide<S>>,
    /// The Node service.
    pub node: Option<NodeSide>,
    /// Finished operations.
    pub journal: Journal,
    /// The deadline of a call whose client names none.
    pub deadline: Duration,
    /// How long a stop waits for the calls that run.
    pub grace: Duration,
}

/// What is behind the Controller services.
#[derive(Debug)]
pub struct ControllerSide<S> {
    /// Where agents are told what is wanted.
    pub store: Arc<S>,
    /// The storage host, when there is but one and it is this: new volumes live here until its agent has said what it has.
    pub owner: Option<String>,
    /// CSI node IDs that may have volumes, besides the owner; none is any.
    pub consumers: Vec<String>,
}

/// What is behind the Node service.
#[derive(Debug)]
pub struct NodeSide {
    /// The consumer.
    pub node: Arc<Node>,
    /// CSI node ID.
    pub node_id: String,
    /// All paths of the node's calls lie below it.
    pub kubelet_dir: PathBuf,
}

/// Why the server ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The socket.
    #[error(transparent)]
    Socket(#[from] socket::Error),
    /// The transport.
    #[error("the gRPC server failed: {0}")]
    Transport(#[from] tonic::transport::Error),
}

/// Serves until `stop` turns true; then accepts nothing more and lets the running calls end, within the grace.
pub async fn serve<S: Store>(
    services: Services<S>,
    listening: Listening,
    mut stop: watch::Receiver<bool>,
) -> Result<(), Error> {
    let (running, mut ended) = mpsc::channel(1);
    let grace = services.grace;
    // The sides do not share their locks: a node may unstage while the controller publishes elsewhere.
    let calls = || Calls::new(services.deadline, running.clone());
    let where_controller = match services.controller {
        Some(_) => identity::Controller::Served,
        None => identity::Controller::Elsewhere,
    };
    let is_plugin = services.controller.is_some() || services.node.is_some();
    let identity = is_plugin.then(|| {
        IdentityServer::new(IdentityService {
            controller: where_controller,
            calls: calls(),
        })
    });
    let journal = services.journal.clone();
    let (controller, group) = services
        .controller
        .map(|side| {
            let site = Site {
                owner: side.owner,
                consumers: side.consumers.into_iter().collect(),
            };
            let controller = Arc::new(Controller::new(side.store, site, journal));
            // One volume's or snapshot's calls exclude each other in both services.
            let calls = calls();
            let group = GroupService::new(controller.clone(), calls.clone());
            (
                ControllerServer::new(ControllerService::new(controller, calls)),
                GroupControllerServer::new(group),
            )
        })
        .unzip();
    let node = services.node.map(|side| {
        NodeServer::new(NodeService {
            node: side.node,
            node_id: side.node_id,
            kubelet_dir: side.kubelet_dir,
            calls: calls(),
        })
    });
    let trace = TraceService {
        journal: services.journal,
        calls: calls(),
    };
    drop(running);
    let mut stopping = stop.clone();
    let serving = Server::builder()
        .add_service(TraceServer::new(trace))
        .add_optional_service(identity)
        .add_optional_service(node)
        .add_optional_service(controller)
        .add_optional_service(group)
        .serve_with_incoming_shutdown(UnixListenerStream::new(listening.listener()?), async move {
            let _ = stopping.wait_for(|stop| *stop).await;
        });
    let grace_is_over = async {
        let _ = stop.wait_for(|stop| *stop).await;
        let _ = timeout(grace, std::future::pending::<()>()).await;
    };
    let drained = async {
        serving.await?;
        // Calls whose clients have gone still work.
        let _ = ended.recv().await;
        Ok(())
    };
    tokio::select! {
        outcome = drained => outcome,
        () = grace_is_over => {
            tracing::warn!(?grace, "some calls have not ended in time: the next start finds out what is left to do");
            Ok(())
        }
    }
}
